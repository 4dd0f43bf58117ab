"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

ActivationName = Literal["relu", "squared_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "identity"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation called `name`; an unknown name is a `ValueError` that lists all."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation '{name}' is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
