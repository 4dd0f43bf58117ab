"""What stands in a module, and the noise that it draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

#: Types whose values are compared; everything else by identity.
PLAIN = (int, float, str, bool, type(None))


def attributes(module: nn.Module) -> dict[str, Any]:
    """What stands in the attributes of every module: plain values as they are, anything else by identity."""
    return {
        f"{prefix}.{name}" if prefix else name: value if isinstance(value, PLAIN) else id(value)
        for prefix, inner in module.named_modules()
        for name, value in vars(inner).items()
        if name != "training"
    }


def jitter(module: nn.Module, seed: int) -> None:
    """Move every parameter a little, so that what is zero at the start is tested as well."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


@contextmanager
def fixed_noise(seed: int) -> Iterator[None]:
    """The global generators begin at `seed`, and are afterwards what they were."""
    used = _generators()
    before = noise()
    for generator in used:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(used, before, strict=True):
            generator.set_state(state)


def noise() -> list[torch.Tensor]:
    """Where the global generators of all devices stand."""
    return [generator.get_state() for generator in _generators()]


def _generators() -> list[torch.Generator]:
    """The CPU's, and those of GPUs once one is used."""
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]
