"""Law 3: packed documents give the outputs that each gives alone, and no gradient crosses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from bakeoff.testing.batch import Batch
from bakeoff.testing.law import hold, sequence_law
from bakeoff.testing.subject import Subject


@sequence_law(3, "documents", claims=("documents",))
def documents(subject: Subject) -> None:
    """Each of several packed documents equals itself alone; a change in one moves no other."""
    small = [([total - last, last],) for total in range(2, 24) for last in range(1, total)]
    for mode in subject.modes_claiming("documents"):
        with subject.mode(mode, quiet=True):
            hold(mode, partial(leak, subject), subject.tried(packings(subject), mode), small)


def packings(subject: Subject) -> Iterator[tuple[list[int], int]]:
    """Lengths of documents, of two rows, that end on both sides of every chunk's borders."""
    yield [2, 1, 3], 2
    for c in subject.landmarks():
        for lengths in ([c - 1, 1, 1, c + 2], [c, 2, 1]) if c < 32 else ([c - 1, 4], [c + 1, 2]):
            yield lengths, 2


def packed(subject: Subject, lengths: list[int], rows: int) -> Batch:
    """Documents of the given lengths in every even row, in reversed order in the others."""
    ids = torch.arange(len(lengths)) * 3 + 5
    orders = (torch.tensor(lengths if row % 2 == 0 else lengths[::-1]) for row in range(rows))
    return subject.batch(rows, sum(lengths), documents=torch.stack([ids.repeat_interleave(n) for n in orders]))


def leak(subject: Subject, lengths: list[int], rows: int = 1) -> str | None:
    """How a packed document depends on another, or None."""
    batch = packed(subject, lengths, rows)
    assert batch.documents is not None
    told = f"documents of {' + '.join(map(str, lengths))} tokens"
    first = batch.documents == batch.documents[:, :1]
    with torch.no_grad():
        together = subject.run(batch).y
        differs = _alone(subject, batch, together) or _split(subject, batch, together)
        after = subject.run(batch.changed(first)).y
    if differs is not None:
        return f"{told}: {differs}"
    place = subject.changed(together, after, ~first)
    if place is not None:
        return f"{told}, the first changed: output {place.t}, of another, moved by {place.by}"
    gradient = subject.gradient(batch, ~first)
    place = subject.changed(torch.zeros_like(gradient), gradient, first)
    if place is not None:
        return (
            f"{told}: the gradient of later documents with respect to token {place.t} of the first is {place.by}, not 0"
        )
    return None


def _alone(subject: Subject, batch: Batch, together: Tensor) -> str | None:
    for row, ids in enumerate(batch.documents):  # type: ignore[arg-type]
        start = 0
        for length in torch.unique_consecutive(ids, return_counts=True)[1].tolist():
            here = slice(start, start + length)
            alone = subject.run(batch.cut(here, slice(row, row + 1))).y
            place = subject.apart(alone, together[row : row + 1, here])
            if place is not None:
                return f"output {start + place.t} differs by {place.by} from its document alone"
            start += length
    return None


def _split(subject: Subject, batch: Batch, together: Tensor) -> str | None:
    """Calls that end inside documents and where they end, in both layouts of the state."""
    if not subject.claimed("state", subject.now):
        return None
    T, first = batch.length, batch.documents[0]  # type: ignore[index]
    splits = [[T // 2, T - T // 2], torch.unique_consecutive(first, return_counts=True)[1].tolist()]
    for lengths in splits + ([[1] * T] if T < 8 else []):
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                place = subject.apart(together, subject.run_split(batch, lengths).y)
            if place is not None:
                told = f"in calls of {' + '.join(map(str, lengths))}"
                return f"{told}, output {place.t} differs by {place.by} from one call"
    return None
