"""Law 6: finite outputs and gradients for inputs of any size; the fast form equals the naive one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from bakeoff.interfaces.part import StatefulPart
from bakeoff.testing.batch import Batch, pulled, scale
from bakeoff.testing.law import Broken, sequence_law
from bakeoff.testing.subject import Subject

#: Inputs are multiplied by these: nothing, vanishing, usual, and such that every gate saturates.
_SIZES = (0.0, 1e-3, 1.0, 1e3)


@sequence_law(6, "numbers")
def numbers(subject: Subject) -> None:
    """Outputs and gradients are finite in float32 and bf16, also where gates saturate; `forward` equals `naive`."""
    autocast = torch.autocast(subject.device.type, torch.bfloat16)
    _finite(subject.cast(torch.float32), "float32", nullcontext())
    _finite(subject.cast(torch.bfloat16), "bf16", nullcontext())
    _finite(subject.cast(torch.float32), "bf16 autocast", autocast)
    if has_naive(subject.module):
        _equals_naive(subject)


def has_naive(module: object) -> bool:
    """Whether a part has a plainer form than its `forward`."""
    return isinstance(module, StatefulPart) and type(module).naive is not StatefulPart.naive


def _lengths(subject: Subject) -> list[int]:
    return [1, 2, 5, *(c + 3 for c in subject.landmarks() if c < 32)]


def _finite(subject: Subject, told: str, precision: AbstractContextManager) -> None:
    for T in _lengths(subject):
        plain = [(size, subject.batch(2, T)) for size in _SIZES]
        packed = [(_SIZES[-1], batch) for batch in _packed(subject, T)]
        for size, batch in plain + packed:
            batch = replace(batch, x=(batch.x * size).requires_grad_())
            with subject.mode("training"), precision:
                y = subject.run(batch).y
                leaves = {"x": batch.x} | subject.parameters()
                slopes = pulled(y, list(leaves.values())) if y.requires_grad else []
            if y.dtype != batch.x.dtype and "autocast" not in told:
                raise Broken(f"{told}, training, T={T}: the output is {str(y.dtype).removeprefix('torch.')}")
            where = f"{told}, training, T={T}, inputs of size {size:g}"
            where += "" if batch.documents is None else ", packed documents"
            if not bool(y.isfinite().all()):
                raise Broken(f"{where}: an output is not finite")
            for name, slope in zip(leaves, slopes, strict=False):
                if not bool(slope.isfinite().all()):
                    raise Broken(f"{where}: the gradient of {name} is not finite")


def _packed(subject: Subject, T: int) -> list[Batch]:
    """Rows of a long document and a short one, where these are kept apart."""
    if T < 3 or not subject.claimed("documents", "training"):
        return []
    documents = (torch.arange(T) >= T - 2).long().expand(2, -1)
    return [subject.batch(2, T, documents=documents)]


def _equals_naive(subject: Subject) -> None:
    for T in _lengths(subject):
        for size in (1.0, 30.0):
            batch = subject.batch(2, T)
            batch = replace(batch, x=(batch.x * size).requires_grad_())
            with subject.mode("training", quiet=True):
                _compare(subject, batch, f"training, T={T}, inputs of size {size:g}")
            with subject.mode("evaluation"), torch.no_grad():
                if subject.claims.state:
                    _compare_states(subject, subject.batch(2, T), f"evaluation, T={T} through the state")


def _compare(subject: Subject, batch: Batch, told: str) -> None:
    fast, naive = subject.run(batch).y, subject.run(batch, naive=True).y
    place = subject.apart(naive, fast)
    if place is not None:
        raise Broken(f"{told}: output {place.t} differs by {place.by} from that of `naive`")
    leaves = {"x": batch.x} | subject.parameters()
    pairs = zip(leaves, pulled(fast, [*leaves.values()]), pulled(naive, [*leaves.values()]), strict=True)
    for name, one, other in pairs:
        difference = float((one - other).abs().max())
        if not difference <= 10 * subject.tolerance * scale(other):
            raise Broken(f"{told}: the gradient of {name} differs by {difference:.2g} from that of `naive`")


def _compare_states(subject: Subject, batch: Batch, told: str) -> None:
    more = subject.batch(2, 2)
    fast = subject.run(more, subject.held(batch, batch.length + 2)).y
    held = subject.run(batch, subject.begin(2, batch.length + 2), naive=True).held
    place = subject.apart(subject.run(more, held, naive=True).y, fast)
    if place is not None:
        raise Broken(f"{told}: the next output {place.t} differs by {place.by} from that of `naive`")
