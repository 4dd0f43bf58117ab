"""Law 2: any split of the sequence gives the same outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import product

import torch

from bakeoff.testing.batch import Batch, Run, pulled, scale
from bakeoff.testing.law import hold, sequence_law
from bakeoff.testing.subject import Subject

#: Mode, and whether gradients are on: the two layouts that a growing state has.
_LAYOUTS = (("evaluation", False), ("training", True))


@sequence_law(2, "split", claims=("state",))
def split(subject: Subject) -> None:
    """All tokens at once equal any chunks through the state, down to single tokens; gradients too."""
    small = [(lengths,) for T in range(1, 8) for lengths in compositions(T)]
    for mode, gradients in _LAYOUTS:
        if not subject.claimed("state", mode):
            continue
        told = f"{mode}, {'gradients on' if gradients else 'no_grad'}"
        with subject.mode(mode, quiet=True), nullcontext() if gradients else torch.no_grad():
            hold(told, partial(slip, subject), splits(subject), small)


def splits(subject: Subject) -> Iterator[tuple[list[int], int]]:
    """Splits of two rows on both sides of every chunk's borders."""
    singles = 9 if subject.brief else min(35, subject.place.max_length)
    yield from (([5], 2), ([1] * singles, 2), ([2, 1, 1, 1], 2), ([3, 1, 1, 4], 2))
    for c in subject.landmarks():
        for lengths in ([c - 1, 1, 1, 2], [c, c, 1]) if c < 32 else ([c - 1, 3], [2, c + 1, 1]):
            yield lengths, 2
        if 3 * c < min(subject.place.max_length, 96):  # a call within which a whole chunk begins and ends
            yield [c, 2 * c + 1], 2


def compositions(T: int) -> Iterator[list[int]]:
    """All ways to cut T tokens, fewest calls first."""
    for cut in sorted(product((False, True), repeat=T - 1), key=sum):
        ends = [place + 1 for place, here in enumerate(cut) if here]
        yield [b - a for a, b in zip([0, *ends], [*ends, T], strict=True)]


def slip(subject: Subject, lengths: list[int], rows: int = 1) -> str | None:
    """How a split differs from one call, or None."""
    T = sum(lengths)
    batch = subject.batch(rows, T)
    batch.x.requires_grad_(torch.is_grad_enabled())
    whole, parts = subject.run(batch), subject.run_split(batch, lengths)
    told = f"T={T} in calls of {' + '.join(map(str, lengths))}"
    place = subject.apart(whole.y, parts.y)
    if place is not None:
        return f"{told}: output {place.t} differs by {place.by} from one call without a state"
    for key, total in whole.aux.items():
        if key not in parts.aux or not torch.allclose(total.double(), parts.aux[key].double(), rtol=1e-5):
            return f"{told}: aux '{key}' does not add up to that of one call"
    return _gradients(subject, batch, whole, parts, told) if whole.y.requires_grad else None


def _gradients(subject: Subject, batch: Batch, whole: Run, parts: Run, told: str) -> str | None:
    named = {"x": batch.x} | subject.parameters()
    leaves = list(named.values())
    for name, one, many in zip(named, pulled(whole.y, leaves), pulled(parts.y, leaves), strict=True):
        difference = float((one - many).abs().max())
        if not difference <= 10 * subject.tolerance * scale(one):
            return f"{told}: the gradient of {name} differs by {difference:.2g} from that of one call"
    return None
