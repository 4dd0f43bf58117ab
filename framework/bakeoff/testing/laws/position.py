"""Positional encodings: what is declared is defined, and what counts is the position that is given."""

from __future__ import annotations

import torch
from torch import Tensor

from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law
from bakeoff.testing.subject import Subject

_HOOKS = ("embed", "rotate", "bias")
_T = 6


@law(None, "hooks", "position")
def hooks(candidate: Candidate) -> None:
    """`hooks` names exactly the methods that the class defines."""
    cls = type(candidate.build())
    defined = {name for name in _HOOKS if getattr(cls, name) is not getattr(PositionalEncoding, name)}
    if set(cls.hooks) != defined:
        told = [", ".join(sorted(names)) or "none" for names in (cls.hooks, defined)]
        raise Broken(f"`hooks` declares {told[0]}, but the class defines {told[1]}")


@law(None, "positions", "position")
def positions(candidate: Candidate) -> None:
    """Outputs follow `sequence.positions`, and, if the class says `relative`, only their differences."""
    subject = candidate.subject
    usual = torch.arange(_T)[None]
    with torch.no_grad():
        before = _placed(subject, usual)
        if subject.apart(before, _placed(subject, 2 * usual)) is None:
            raise Broken(f"T={_T}: positions {usual[0].tolist()} and their doubles give the same outputs")
        shifted = subject.apart(before, _placed(subject, usual + 5))
    relative = candidate.build().relative
    if relative and shifted is not None:
        raise Broken(f"T={_T}: claims `relative`, but positions moved by 5 move output {shifted.t} by {shifted.by}")
    if not relative and shifted is None:
        raise Broken(f"T={_T}: positions moved by 5 move no output: claim `relative`")


def _placed(subject: Subject, places: Tensor) -> Tensor:
    batch = subject.batch(1, _T)
    return subject.call(batch.x, subject.sequence(batch, positions=places)).y
