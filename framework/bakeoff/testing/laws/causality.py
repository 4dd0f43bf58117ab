"""Law 1: no output depends on a later token; a class that disclaims this is seen to leak."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bakeoff.testing.batch import Batch, Place
from bakeoff.testing.law import Broken, first_slip, hold, sequence_law
from bakeoff.testing.subject import MODES, Subject

#: Chunks that no attribute tells of are looked for at these lengths.
_USUAL_CHUNKS = (64, 128)


@sequence_law(1, "causality")
def causality(subject: Subject) -> None:
    """Changing a token leaves every earlier output unchanged, and so do gradients; in each mode as claimed."""
    shows = partial(leak, subject)
    for mode in MODES:
        with subject.mode(mode):
            if subject.claimed("causal", mode):
                hold(mode, shows, probes(subject, mode), ((T, t) for T in range(2, 40) for t in range(1, T)))
            elif first_slip(shows, probes(subject, mode)) is None:
                raise Broken(f"{mode}: disclaims `causal`, but no output depends on a later token: claim it")
    if subject.claims.bidirectional:
        _bidirectional(subject)


def probes(subject: Subject, mode: str) -> Iterator[tuple[int, int, int]]:
    """Lengths, ragged with respect to every chunk, and tokens on both sides of its borders, of two rows."""
    yield from ((5, t, 2) for t in range(1, 5))
    for chunk in subject.landmarks():
        T = 2 * chunk + 3 if chunk < 32 else chunk + 3
        yield from ((T, t, 2) for t in sorted({1, chunk - 1, chunk, chunk + 1, T - 1}) if 0 < t < T)
    hidden = (chunk for chunk in _USUAL_CHUNKS if chunk + 3 <= subject.place.max_length)
    yield from subject.tried(((c + 3, t, 2) for c in hidden for t in (1, c - 1, c + 2)), mode)


def leak(subject: Subject, T: int, t: int, rows: int = 1) -> str | None:
    """How an output before token `t` of `T` depends on a token from `t` on, or None."""
    batch = subject.batch(rows, T)
    before_t = torch.arange(T).expand(rows, T) < t
    with torch.no_grad():
        before = subject.run(batch).y
        after = subject.run(batch.changed(torch.arange(T).expand(rows, T) == t)).y
    place = subject.changed(before, after, before_t)
    if place is not None:
        return f"T={T}, token {t} changed: output {place.t} moved by {place.by}"
    gradient = subject.gradient(batch, before_t)
    place = subject.changed(torch.zeros_like(gradient), gradient, ~before_t)
    if place is not None:
        outputs = "output 0" if t == 1 else f"outputs before {t}"
        return f"T={T}: the gradient of {outputs} with respect to token {place.t} is {place.by}, not 0"
    return None


def _bidirectional(subject: Subject) -> None:
    """What claims `bidirectional` looks ahead inside a prefix of 2 of 4 tokens, and nowhere else."""
    batch, places = subject.batch(1, 4), torch.arange(4)[None]
    prefix: dict[str, Any] = {"visibility": "prefix", "prefix": torch.tensor([[2] * 4])}
    for given, t, before_t in ((prefix, 2, places < 2), (prefix, 3, places < 3)):
        place = _seen(subject, batch, t, before_t, given)
        if place is not None:
            raise Broken(
                f"evaluation, T=4, a prefix of 2 visible: token {t} changed, output {place.t} moved by {place.by}"
            )
    if subject.module.kind != "mixer":
        return
    for given, told in (({"visibility": "bidirectional"}, "bidirectional"), (prefix, "a prefix of 2 visible")):
        if _seen(subject, batch, 1, places < 1, given) is None:
            raise Broken(f"evaluation, T=4, {told}: claims `bidirectional`, but token 1 changed and output 0 did not")


def _seen(subject: Subject, batch: Batch, t: int, among: Tensor, given: dict[str, Any]) -> Place | None:
    changed = torch.arange(batch.length)[None] == t
    with torch.no_grad():
        before, after = subject.run(batch, **given).y, subject.run(batch.changed(changed), **given).y
    return subject.changed(before, after, among)
