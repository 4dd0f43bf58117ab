"""What a recipe's `trainer.precision` means for tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from bakeoff.recipe import Recipe

#: Lightning's `precision` -> (type of the parameters, type of autocast).
PRECISIONS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "64": (torch.float64, None),
    "64-true": (torch.float64, None),
    "32": (torch.float32, None),
    "32-true": (torch.float32, None),
    "16": (torch.float32, torch.float16),
    "16-mixed": (torch.float32, torch.float16),
    "16-true": (torch.float16, None),
    "bf16": (torch.float32, torch.bfloat16),
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "bf16-true": (torch.bfloat16, None),
}


def precision_of(recipe: Recipe) -> str:
    """The recipe's precision, "32" where it says none."""
    return str(recipe.tree["trainer"].get("precision") or "32")


def autocast(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """The context that the recipe's forward runs in."""
    mixed = PRECISIONS.get(precision_of(recipe), (torch.float32, None))[1]
    return nullcontext() if mixed is None else torch.autocast(device.type, mixed)
