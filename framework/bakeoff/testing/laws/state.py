"""Law 5: what is done to states works, and their bytes and dtypes are what is declared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from bakeoff.interfaces.past import Past
from bakeoff.interfaces.state import tensors
from bakeoff.testing.law import Broken, sequence_law
from bakeoff.testing.subject import Subject

_LAYOUTS = (("gradients on", True), ("no_grad", False))
#: Long enough that a cache of inputs holds no one number that the first and the last token both decide.
_APART = 48


@sequence_law(5, "state", claims=("state",))
def state(subject: Subject) -> None:
    """Rows are selected and repeated, a fork goes its own way; bytes as declared; accumulators are float32.

    A state of constant size goes on from one training window to the next.
    """
    for told, gradients in _LAYOUTS:
        with subject.mode("evaluation"), nullcontext() if gradients else torch.no_grad():
            _is_nest(subject, told)
            _selected(subject, told)
            _forked(subject, told)
            _begun_again(subject, told)
            if gradients:
                _functional(subject, told)
    with subject.mode("evaluation"), torch.no_grad():
        _bytes(subject)
        if subject.module.kind in ("mixer", "feed_forward"):  # deeper, every cache depends on all tokens
            _accumulators(subject)
    with subject.mode("evaluation"):
        _carried(subject)


def _is_nest(subject: Subject, told: str) -> None:
    for name, held in (
        ("empty_state", subject.begin(3, 8)),
        ("the state after 2 tokens", subject.held(subject.batch(3, 2), 8)),
    ):
        for leaf in leaves(held.state):
            if not isinstance(leaf, Tensor):
                raise Broken(f"{told}: {name} holds a {type(leaf).__name__}; a state is a nest of tensors")
            if leaf.shape[:1] != (3,):
                raise Broken(f"{told}: {name} of 3 rows holds a tensor of shape {tuple(leaf.shape)}; rows come first")


def _selected(subject: Subject, told: str) -> None:
    for T, rows in ((1, [1, 0]), (5, [1, 0]), (5, [1, 1, 0]), (5, [0]), (6, [2, 0, 0])):
        index = torch.tensor(rows)
        batch, more = subject.batch(max(rows) + 2, T), subject.batch(len(rows), 2)
        held = subject.held(batch, T + 2)
        got = subject.run(more, held.select(index)).y
        want = subject.run(batch.select(index).then(more)).y[:, T:]
        place = subject.apart(want, got)
        if place is not None:
            slip = f"T={T}, then rows {rows} of {len(batch.x)} selected"
            raise Broken(f"{told}: {slip}: the next output of row {place.row} differs by {place.by}")


def _forked(subject: Subject, told: str) -> None:
    for T in (1, 5):
        batch, more = subject.batch(1, T), subject.batch(1, 2)
        held = subject.held(batch, T + 2)
        branch = held.fork()
        subject.run(more.changed(torch.ones(1, 2, dtype=torch.bool)), held)
        place = subject.apart(subject.run(batch.then(more)).y[:, T:], subject.run(more, branch).y)
        if place is not None:
            slip = f"T={T}, then a fork, the original having gone on"
            raise Broken(f"{told}: {slip}: the fork's next output differs by {place.by}")


def _functional(subject: Subject, told: str) -> None:
    """Under gradients a call leaves the state that it is given as it is."""
    held = subject.held(subject.batch(1, 3), 5)
    before = [tensor.clone() for tensor in leaves(held.state)]
    subject.run(subject.batch(1, 2), held)
    if any(not torch.equal(one, other) for one, other in zip(before, leaves(held.state), strict=True)):
        raise Broken(f"{told}: T=3, then 2 more: forward wrote into the state that it was given")


def _carried(subject: Subject) -> None:
    """Between two windows of truncated backpropagation the state keeps its size, and loses only its gradients."""
    if not subject.claims.constant_state:
        return
    for T in (1, 5):
        batch, more = subject.batch(2, T), subject.batch(2, 3)
        begun = subject.carried(subject.begin(2, T + 3))
        after = subject.run(batch, begun).held
        assert after is not None
        held = subject.carried(after)
        told = f"T={T} and 3 more, as two training windows"
        if size(held.state) != size(begun.state):
            raise Broken(f"{told}: the state takes {size(held.state)} bytes, and {size(begun.state)} where it began")
        if any(tensor.requires_grad for tensor in leaves(held.state)):
            raise Broken(f"{told}: the state has gradients after `carry`")
        place = subject.apart(subject.run(batch.then(more)).y[:, T:], subject.run(more, held).y)
        if place is not None:
            raise Broken(f"{told}: output {T + place.t} differs by {place.by} from that of one window")


def _begun_again(subject: Subject, told: str) -> None:
    batch = subject.batch(1, 3)
    first = subject.run(batch, subject.begin(1, 3)).y
    subject.held(subject.batch(2, 4), 4)
    place = subject.apart(first, subject.run(batch, subject.begin(1, 3)).y)
    if place is not None:
        raise Broken(
            f"{told}: T=3 from an empty state, again after a batch of 2: output {place.t} differs by {place.by}"
        )


def _bytes(subject: Subject) -> None:
    def declared(rows: int, T: int) -> int:
        return size(subject.module.empty_state(rows, T, subject.dtype, "meta"))

    for T in (1, 8):
        got = size(subject.held(subject.batch(2, T), 8).state)
        if got != declared(2, 8):
            raise Broken(f"no_grad, B=2, T={T}: the state takes {got} bytes, empty_state for 8 tokens {declared(2, 8)}")
    short, long = declared(1, 1024), declared(1, 4096)
    if subject.claims.constant_state and short != long:
        raise Broken(f"claims `constant_state`, but takes {short} bytes for 1024 tokens and {long} for 4096")


def _accumulators(subject: Subject) -> None:
    """A number that both the first and the last of many tokens move is accumulated: it must not be kept in bf16."""
    batch, places = subject.batch(1, _APART), torch.arange(_APART)[None]
    runs = [subject.held(batch.changed(places == t), _APART).state for t in (-1, 0, _APART - 1)]
    lean = leaves(subject.module.empty_state(1, _APART, torch.bfloat16))
    for number, (kept, base, first, last) in enumerate(zip(lean, *map(leaves, runs), strict=True)):
        accumulates = bool(((base != first) & (base != last)).any())
        if accumulates and base.is_floating_point() and kept.dtype.itemsize < 4:
            told = f"empty_state(1, {_APART}, torch.bfloat16): tensor {number} of shape {tuple(base.shape)} accumulates"
            moves = f"the first and the last of {_APART} tokens both move it"
            raise Broken(f"{told} ({moves}), but is {str(kept.dtype).removeprefix('torch.')}, not float32")


def leaves(state: Any) -> Iterator[Any]:
    """Whatever stands in the nest, a backbone's `Past` apart."""
    if isinstance(state, dict):
        state = tuple(state.values())
    if isinstance(state, (tuple, list)):
        for inner in state:
            yield from leaves(inner)
    elif state is not None and not isinstance(state, Past):
        found: list[Any] = [state] if isinstance(state, (Tensor, int, float, str)) else []
        yield from found or tensors(state)


def size(state: Any) -> int:
    """Bytes of the nest, a backbone's `Past` apart."""
    return sum(tensor.numel() * tensor.element_size() for tensor in leaves(state))
