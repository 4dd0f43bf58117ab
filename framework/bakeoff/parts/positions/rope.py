"""Rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.sequence import Need, Sequence


@dataclass(frozen=True)
class RotaryTable(Need):
    """Cosines and sines of the angles `position * base^(-2i / width)`, (B or 1, T, 1, width / 2), float32."""

    width: int
    base: float

    def derive(self, sequence: Sequence) -> tuple[Tensor, Tensor]:
        """From `sequence.positions`."""
        exponents = torch.arange(0, self.width, 2, device=sequence.tokens.device).float() / self.width
        angles = sequence.positions[:, :, None, None].float() * (1.0 / self.base**exponents)
        return angles.cos(), angles.sin()


class RoPE(PositionalEncoding):
    """Rotates pairs of channels of queries and keys by angles that grow with the position.

    The product of a query and a key then depends on their distance only.

    Parameters
    ----------
    base : the slowest pair turns once in about 2 pi `base` tokens.
    fraction : part of each head's channels, the first ones, that is rotated.
    interleaved : pairs are (0, 1), (2, 3), … (GPT-J) instead of (0, n/2), (1, n/2 + 1), … (GPT-NeoX, Llama).

    Raises `UserError` if the rotated channels are not an even number, at least 2.
    """

    reference = Reference(
        "Su et al.", 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", "https://arxiv.org/abs/2104.09864"
    )  # fmt: skip
    hooks: ClassVar[frozenset[str]] = frozenset({"rotate"})

    def __init__(
        self, context: LayerContext, *, base: float = 10000.0, fraction: float = 1.0, interleaved: bool = False
    ):
        super().__init__(context)
        if context.head_width is None:
            raise UserError(
                "RoPE rotates the heads of attention: give it to a mixer, as in mixer: {position: {use: rope}}"
            )
        self.width = int(context.head_width * fraction)
        if self.width % 2 or not 2 <= self.width <= context.head_width:
            raise UserError(
                f"RoPE: head_width {context.head_width} times fraction {fraction} gives {self.width} channels; "
                "pairs are rotated, so it must be even, at least 2, and no more than head_width"
            )
        self.interleaved = interleaved
        self.table = RotaryTable(self.width, base)

    def needs(self) -> tuple[Need, ...]:
        """The table of this call's positions."""
        return (self.table,)

    def rotate(self, q: Tensor, k: Tensor, sequence: Sequence) -> tuple[Tensor, Tensor]:
        """(B, T, H, N) and (B, T, K, N), each in its own type; the arithmetic is float32 at least."""
        cos, sin = sequence[self.table]
        return self._rotated(q, cos, sin), self._rotated(k, cos, sin)

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, rest = x[..., : self.width], x[..., self.width :]
        turn = rotate_pairs if self.interleaved else rotate_halves
        turned = turn(turned, cos, sin).to(x.dtype)
        return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + n/2) of the last dimension n; `cos`, `sin` are (..., n/2) and broadcast."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (2i, 2i + 1) of the last dimension n; `cos`, `sin` are (..., n/2) and broadcast."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
