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
    """The global generator begins at `seed`, and is afterwards what it was."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
