"""Rotary position embedding as Llama 3.1 extends it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.parts.positions.rope import RoPE, RotaryTable
from bakeoff.parts.positions.scaled_rope import at_least


@dataclass(frozen=True)
class Llama3Table(RotaryTable):
    """A table whose pairs keep their frequency from `high` turns in `original_length` tokens on, have it divided by
    `factor` up to `low` turns, and go over evenly, in turns, between."""

    factor: float
    low: float
    high: float
    original_length: int

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Radians a token, (width / 2,), float32."""
        plain = super().frequencies(device)
        turns = plain * (self.original_length / (2 * math.pi))
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return plain / self.factor * (1 - kept) + plain * kept


class Llama3RoPE(RoPE):
    """The scaling of Llama 3.1: pairs that turn often within `original_length` tokens are kept, others slowed.

    Parameters
    ----------
    factor : by how much slow pairs are slowed, at least 1.
    original_length : tokens that the model was trained on.
    low, high : turns within `original_length` to which a pair is slowed by `factor`, and from which it is kept.
    base, fraction, interleaved : as in RoPE; Llama 3 has a base of 500000.

    Raises `UserError` as RoPE does, and if a number is out of range.
    """

    reference = Reference("Grattafiori et al.", 2024, "The Llama 3 Herd of Models", "https://arxiv.org/abs/2407.21783")

    def __init__(
        self,
        context: LayerContext,
        *,
        factor: float,
        original_length: int,
        low: float = 1.0,
        high: float = 4.0,
        base: float = 500000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
    ):
        super().__init__(context, base=base, fraction=fraction, interleaved=interleaved)
        at_least("Llama3RoPE", 1, factor=factor, original_length=original_length)
        if not 0 <= low < high:
            raise UserError(f"Llama3RoPE: low is {low} and high {high}; low must be at least 0, and high larger")
        self.table = Llama3Table(self.width, base, interleaved, factor, low, high, original_length)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both ways to pair channels, and every option."""
        return [
            {"factor": 8.0, "original_length": 32},
            {"factor": 2.0, "original_length": 64, "low": 0.5, "high": 8.0, "interleaved": True, "base": 100.0},
        ]
