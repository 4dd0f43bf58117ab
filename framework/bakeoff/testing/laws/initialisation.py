"""Law 7: no parameter is left unfilled, and a part's own initialisation survives construction inside a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from bakeoff.testing.candidate import Candidate
from bakeoff.testing.host import model
from bakeoff.testing.law import PART_KINDS, Broken, NotApplicable, law


@law(7, "initialisation", *PART_KINDS)
def initialisation(candidate: Candidate) -> None:
    """Alone, inside a model, and inside a model made on the meta device, a part starts with the same values."""
    try:
        alone, again = (candidate.filled(jittered=False) for _ in range(2))
    except ValueError as error:
        if "unfilled" not in str(error):
            raise
        raise Broken(str(error).replace("part.", "")) from None
    for (name, one), (_, other) in zip(tensors(alone.part), tensors(again.part), strict=True):
        if not torch.equal(one, other):
            raise Broken(f"{name} differs between two initialisations with the same seed: draw through `init.fill`")
    _inside_a_model(candidate, alone.part)


def _inside_a_model(candidate: Candidate, alone: nn.Module) -> None:
    make = partial(model, candidate.kind, candidate.build)
    inside = make().initialise(candidate.seed)
    with torch.device("meta"):
        hollow = make()
    with _garbage():
        hollow.initialise(candidate.seed)
    for (name, one), (_, other) in zip(tensors(inside), tensors(hollow), strict=True):
        if not torch.equal(one, other):
            raise Broken(
                f"inside a model that was made on the meta device, {name} differs from one made on the CPU: "
                "fill parameters and buffers in reset_parameters, through `init.fill`"
            )
    part = next((module for module in inside.modules() if type(module) is type(alone)), None)
    if part is None:
        raise NotApplicable("its place inside a model is not known")
    for (name, one), (_, other) in zip(tensors(alone), tensors(part), strict=True):
        if one.is_floating_point() and not _alike(one, other):
            raise Broken(
                f"{name} starts {_told(one)} alone, {_told(other)} inside a model of 2 layers: "
                "an outer part overwrites it"
            )


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


@contextmanager
def _garbage() -> Iterator[None]:
    """Memory that is not filled holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Equal constants, or samples of one distribution: mean and deviation agree within what their number allows."""
    one, other = one.detach(), other.detach()
    if one.numel() < 2 or float(one.std()) < 1e-6:
        return torch.allclose(one, other, atol=1e-6) or (one.numel() < 2 and bool(other.isfinite().all()))
    spread, n = float(one.std()), one.numel()
    near = abs(float(one.mean() - other.mean())) <= 8 * spread / n**0.5
    return near and abs(float(other.std()) / spread - 1) <= 8 / n**0.5


def _told(values: Tensor) -> str:
    mean, deviation = float(values.detach().mean()), float(values.detach().std(correction=0))
    return f"at {mean:.3g} on average with deviation {deviation:.2g}"
