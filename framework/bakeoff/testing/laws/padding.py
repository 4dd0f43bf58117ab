"""Law 4: padding changes nothing for real tokens, and no row depends on another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bakeoff.testing.batch import Batch, Run
from bakeoff.testing.law import Broken, first_slip, hold, sequence_law
from bakeoff.testing.subject import MODES, Subject


@sequence_law(4, "rows")
def rows(subject: Subject) -> None:
    """A row alone equals the row in a batch; changing one row moves no other. A disclaimer is seen to leak."""
    cases = [(3, 5), (2, subject.landmarks()[0] + 1)]
    leaks = []
    for mode in MODES:
        with subject.mode(mode, quiet=True):
            if subject.claimed("row_local", mode):
                hold(mode, partial(row_leak, subject), cases, ((B, T) for T in range(1, 6) for B in (2, 3)))
            else:
                leaks.append(first_slip(partial(row_leak, subject), cases))
    if leaks and not any(leaks):
        raise Broken("disclaims `row_local`, but no row depends on another: claim it")


def row_leak(subject: Subject, B: int, T: int) -> str | None:
    """How a row depends on another, or None."""
    batch = subject.batch(B, T)
    last = (torch.arange(B) == B - 1)[:, None].expand(B, T)
    with torch.no_grad():
        before, after = subject.run(batch).y, subject.run(batch.changed(last)).y
        place = subject.changed(before, after, ~last)
        if place is not None:
            return f"B={B}, T={T}, row {B - 1} changed: output {place.t} of row {place.row} moved by {place.by}"
        for row in range(B):
            alone = subject.run(batch.cut(slice(None), slice(row, row + 1))).y
            place = subject.apart(alone, before[row : row + 1])
            if place is not None:
                return f"B={B}, T={T}: output {place.t} of row {row} differs by {place.by} from the row alone"
    gradient = subject.gradient(batch, ~last)
    place = subject.changed(torch.zeros_like(gradient), gradient, last)
    if place is not None:
        return f"B={B}, T={T}: the gradient of the other rows with respect to row {B - 1} is {place.by}, not 0"
    return None


@sequence_law(4, "padding", claims=("padding",))
def padding(subject: Subject) -> None:
    """Left padding (with an empty state, too) and right padding change nothing for real tokens; aux neither.

    A call of padding alone gives finite outputs.
    """
    small = [
        ([total - pads], pads, left) for total in range(2, 12) for pads in range(1, total) for left in (True, False)
    ]
    for mode in subject.modes_claiming("padding"):
        with subject.mode(mode, quiet=True):
            hold(mode, partial(slip, subject), subject.tried(_cases(subject, mode), mode), small)
            alone = replace(subject.batch(2, 3), real=torch.zeros(2, 3, dtype=torch.bool))
            if not bool(subject.run(alone).y.isfinite().all()):
                raise Broken(f"{mode}, B=2, T=3: all tokens are padding, and an output is not finite")


def _cases(subject: Subject, mode: str) -> Iterator[tuple]:
    for left in (True, False):
        yield [3, 5, 1], 1, left
        if subject.claimed("documents", mode):
            yield [3, 5, 1], 2, left, True
        for c in subject.landmarks():
            yield [c, 2], 3, left


def slip(subject: Subject, lengths: list[int], pads: int, left: bool, packed: bool = False) -> str | None:
    """How rows of `lengths` real tokens, padded to `pads` over the longest, differ from the rows alone, or None.

    `packed`: the middle of the padded row is where a second document begins.
    """
    T = max(lengths) + pads
    counts = torch.tensor(lengths)[:, None]
    real = torch.arange(T) >= T - counts if left else torch.arange(T) < counts
    documents = (torch.arange(T) >= T // 2).long().expand(len(lengths), T) if packed else None
    batch = replace(subject.batch(len(lengths), T), real=real, documents=documents)
    shown = lengths[0] if len(lengths) == 1 else lengths
    told = f"{shown} real token{'' if shown == 1 else 's'}, padded on the {'left' if left else 'right'} to T={T}"
    told += ", two documents" if packed else ""
    alone = [_real_tokens(batch, row) for row in range(len(lengths))]
    with torch.no_grad():
        together = subject.run(batch)
        differs = _compare(subject, batch, alone, together) or _continued(subject, batch, alone)
        after = subject.run(batch.changed(~real)).y
    if differs is not None:
        return f"{told}{differs}"
    place = subject.changed(together.y, after, real)
    if place is not None:
        return f"{told}, the padding changed: output {place.t} moved by {place.by}"
    gradient = subject.gradient(batch, real)
    place = subject.changed(torch.zeros_like(gradient), gradient, ~real)
    if place is not None:
        return f"{told}: the gradient of real tokens with respect to padding {place.t} is {place.by}, not 0"
    return None


def _real_tokens(batch: Batch, row: int) -> Batch:
    assert batch.real is not None
    real: Tensor = batch.real[row]
    first = int(real.int().argmax())
    return replace(batch.cut(slice(first, first + int(real.sum())), slice(row, row + 1)), real=None)


def _compare(subject: Subject, batch: Batch, alone: list[Batch], together: Run) -> str | None:
    if not bool(together.y.isfinite().all()):
        return ": an output is not finite"
    runs = [subject.run(row) for row in alone]
    for row, run in enumerate(runs):
        mine = together.y[row : row + 1, batch.real[row]]  # type: ignore[index]
        place = subject.apart(run.y, mine)
        if place is not None:
            return f": the output of real token {place.t}{_of(row, runs)} differs by {place.by} from the row alone"
    for key, total in together.aux.items():
        summed = torch.stack([run.aux[key] for run in runs]).sum(0)
        if subject.claims.row_local and not torch.allclose(total, summed, rtol=1e-5):
            return f": aux '{key}' counts padding"
    return None


def _continued(subject: Subject, batch: Batch, alone: list[Batch]) -> str | None:
    """After the padded call, tokens one by one, the first of them padding for the first row, against each row alone."""
    if not subject.claimed("state", subject.now) or batch.documents is not None:
        return None
    B, T = batch.tokens.shape
    more = subject.batch(B, 3)
    skipped = torch.zeros(B, 3, dtype=torch.bool)
    skipped[0, 0] = True
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            held = subject.run(batch, subject.begin(B, T + 3)).held
            together = subject.run_split(replace(more, real=~skipped), [1, 1, 1], held).y
        for row, prompt in enumerate(alone):
            tail = more.cut(slice(int(skipped[row, 0]), None), slice(row, row + 1))
            want = subject.run(prompt.then(tail)).y[:, prompt.length :]
            place = subject.apart(want, together[row : row + 1, 3 - tail.length :])
            if place is not None:
                between = "a padding token and " if row == 0 else ""
                told = f", then {between}tokens one by one: new token {place.t + 1}{_of(row, alone)}"
                return f"{told} differs by {place.by} from the row alone"
    return None


def _of(row: int, rows: list) -> str:
    return f" of row {row}" if len(rows) > 1 else ""
