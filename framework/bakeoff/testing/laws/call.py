"""The call: what goes in and comes out of `forward`, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.testing.batch import first_place, moved
from bakeoff.testing.law import Broken, sequence_law
from bakeoff.testing.subject import MODES, Subject
from bakeoff.testing.values import attributes, fixed_noise, noise


@sequence_law(None, "call")
def call(subject: Subject) -> None:
    """(B, T, D) in, the same shape and dtype out; a state out if and only if one goes in; no side effects."""
    for mode in MODES:
        with subject.mode(mode):
            for T in (1, 5):
                _shapes(subject, f"{mode}, B=2, T={T}", T)
                _side_effects(subject, f"{mode}, B=2, T={T}", T)
    _strides(subject)
    _randomness(subject)


def _shapes(subject: Subject, told: str, T: int) -> None:
    batch = subject.batch(2, T)
    with torch.no_grad():
        result = subject.call(batch.x, subject.sequence(batch))
        if not isinstance(result, Result):
            raise Broken(f"{told}: forward returns {type(result).__name__}, not Result(y)")
        if result.y.shape != batch.x.shape or result.y.dtype != batch.x.dtype:
            raise Broken(f"{told}: x is {_described(batch.x)}, y is {_described(result.y)}")
        if result.state is not None:
            raise Broken(f"{told}: forward returns a state, but none was given")
        try:
            held = subject.begin(2, T)
        except CapabilityError:
            if subject.claims.state:
                raise Broken(f"{told}: claims `state`, but empty_state refuses") from None
            return
        if subject.call(batch.x, subject.sequence(batch, held), held).state is None:
            raise Broken(f"{told}: a state was given, but forward returns none")


def _side_effects(subject: Subject, told: str, T: int) -> None:
    batch = subject.batch(2, T)
    held_x = batch.x.clone()
    values = {name: tensor.clone() for name, tensor in _tensors(subject.root)}
    sequence = subject.sequence(batch)
    places = [place.clone() for place in _places(sequence)]
    with fixed_noise(subject.seed):
        first = subject.call(batch.x, sequence).y
    for name, tensor in _tensors(subject.root):
        if name not in values or not torch.equal(values[name], tensor):
            shown = name.removeprefix("part.")
            raise Broken(f"{told}: forward changed '{shown}'; what updates after a step does so in after_step")
    for name, value in attributes(subject.root).items():
        if name not in subject.untouched or subject.untouched[name] != value:
            raise Broken(
                f"{told}: forward set '{name.removeprefix('part.')}'; what is derived once is a need, or memory"
            )
    if not torch.equal(batch.x, held_x):
        raise Broken(f"{told}: forward wrote into its input")
    if any(not torch.equal(one, other) for one, other in zip(places, _places(sequence), strict=True)):
        raise Broken(f"{told}: forward wrote into the sequence")
    place = first_place(moved(first, subject.run(batch).y, 0.0))
    if place is not None:
        raise Broken(f"{told}: a second call with the same input and noise moved output {place.t} by {place.by}")


def _strides(subject: Subject) -> None:
    batch = subject.batch(2, 5)
    strided = replace(batch, x=batch.x.mT.contiguous().mT)
    with subject.mode("evaluation"), torch.no_grad():
        place = subject.apart(subject.run(batch).y, subject.run(strided).y)
    if place is not None:
        raise Broken(f"evaluation, B=2, T=5: the same input, not contiguous, moved output {place.t} by {place.by}")


def _randomness(subject: Subject) -> None:
    batch = subject.batch(2, 5)
    with subject.mode("evaluation"), torch.no_grad(), fixed_noise(subject.seed):
        before = noise()
        subject.call(batch.x, subject.sequence(batch))
        if any(not torch.equal(one, other) for one, other in zip(before, noise(), strict=True)):
            raise Broken("evaluation, B=2, T=5: forward draws from the global random generator")


def _places(sequence: Sequence) -> list[torch.Tensor]:
    return [sequence.tokens, sequence.index, sequence.positions]


def _described(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
