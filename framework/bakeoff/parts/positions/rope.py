"""Rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.sequence import Need, Sequence


@dataclass(frozen=True)
class RotaryTable(Need):
    """Cosines and sines of the angles `position * frequency` of each pair, (B or 1, T, 1, width), float32.

    Each stands at both channels of its pair, the sine negated at the first of them.
    """

    width: int
    base: float
    interleaved: bool

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Radians a token of pair i, `base^(-2i / width)`, (width / 2,), float32."""
        exponents = torch.arange(0, self.width, 2, dtype=torch.float32, device=device) / self.width
        return 1.0 / self.base**exponents

    def derive(self, sequence: Sequence) -> tuple[Tensor, Tensor]:
        """From `sequence.positions`."""
        frequencies = self.frequencies(sequence.tokens.device)
        both = (-frequencies, frequencies)  # the cosine of a negative angle is that of the positive one
        turned = torch.stack(both, -1).flatten() if self.interleaved else torch.cat(both)
        angles = sequence.positions[:, :, None, None] * turned
        return angles.cos(), angles.sin()


class RoPE(PositionalEncoding):
    """Rotates pairs of channels of queries and keys by angles that grow with the position.

    The product of a query and a key then depends on their distance only.

    Parameters
    ----------
    base : over 1; the slowest pair turns once in about 2 pi `base` tokens.
    fraction : part of each head's channels, the first ones, that is rotated.
    interleaved : pairs are (0, 1), (2, 3), … (GPT-J) instead of (0, n/2), (1, n/2 + 1), … (GPT-NeoX, Llama).

    Raises `UserError` if `base` is too small or the rotated channels are not an even number, at least 2.
    """

    reference = Reference(
        "Su et al.", 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", "https://arxiv.org/abs/2104.09864"
    )  # fmt: skip
    hooks: ClassVar[frozenset[str]] = frozenset({"rotate"})
    capabilities = Capabilities(context_parallel=True)
    relative: ClassVar[bool] = True

    def __init__(
        self, context: LayerContext, *, base: float = 10000.0, fraction: float = 1.0, interleaved: bool = False
    ):
        super().__init__(context)
        name = type(self).__name__
        if context.head_width is None:
            raise UserError(
                f"{name} rotates the heads of attention: give it to a mixer, as in mixer: {{position: {{use: rope}}}}"
            )
        self.width = int(context.head_width * fraction)
        if self.width % 2 or not 2 <= self.width <= context.head_width:
            raise UserError(
                f"{name}: head_width {context.head_width} times fraction {fraction} gives {self.width} channels; "
                "pairs are rotated, so it must be even, at least 2, and no more than head_width"
            )
        if base <= 1:
            raise UserError(f"{name}: base is {base}; it must be over 1, so that pairs turn at many speeds")
        self.interleaved = interleaved
        self.table = RotaryTable(self.width, base, interleaved)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both ways to pair channels, and a part of them."""
        return [{}, {"interleaved": True, "fraction": 0.5, "base": 100.0}]

    def needs(self) -> tuple[Need, ...]:
        """The table of this call's positions."""
        return (self.table,)

    def rotate(self, q: Tensor, k: Tensor, sequence: Sequence) -> tuple[Tensor, Tensor]:
        """(B, T, H, N) and (B, T, K, N), each in its own type; the arithmetic is float32 at least."""
        cos, sin = sequence[self.table]
        return self._rotated(q, cos, sin), self._rotated(k, cos, sin)

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = rotate(x[..., : self.width], cos, sin, self.interleaved).to(x.dtype)
        return turned if self.width == x.shape[-1] else torch.cat([turned, x[..., self.width :]], -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the pairs of the last dimension n, (i, i + n/2) or, interleaved, (2i, 2i + 1), by a `RotaryTable`."""
    if interleaved:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        partners = torch.stack([second, first], -1).flatten(-2)
    else:
        partners = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, partners, sin)


def rotate_naively(x: Tensor, angles: Tensor, interleaved: bool = False) -> Tensor:
    """The same by complex numbers, each pair turned by its angle, (..., n/2). For tests."""
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    parts = [turned.real, turned.imag]
    return torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
