"""Fixed sinusoids added to the embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.sequence import Need, Sequence


@dataclass(frozen=True)
class Sinusoids(Need):
    """sin(p / 10000^(2i / D)) in channel 2i and the cosine in channel 2i + 1, (B or 1, T, D), float32."""

    d_model: int

    def derive(self, sequence: Sequence) -> Tensor:
        """From `sequence.positions`."""
        exponents = torch.arange(0, self.d_model, 2, device=sequence.tokens.device).float() / self.d_model
        angles = sequence.positions[:, :, None].float() * (1.0 / 10000.0**exponents)
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


class SinusoidalPosition(PositionalEncoding):
    """Adds sinusoids of the position, of wavelengths from 2 pi to 20000 pi, to the embeddings.

    Raises `UserError` if D is odd.
    """

    reference = Reference("Vaswani et al.", 2017, "Attention Is All You Need", "https://arxiv.org/abs/1706.03762")
    hooks: ClassVar[frozenset[str]] = frozenset({"embed"})
    capabilities = Capabilities(context_parallel=True)

    def __init__(self, context: LayerContext):
        super().__init__(context)
        if context.d_model % 2:
            raise UserError(
                f"SinusoidalPosition: d_model is {context.d_model}; channels come in pairs of sine and cosine, "
                "so it must be even"
            )
        self.table = Sinusoids(context.d_model)

    def needs(self) -> tuple[Need, ...]:
        """The sinusoids of this call's positions."""
        return (self.table,)

    def embed(self, x: Tensor, sequence: Sequence) -> Tensor:
        """(B, T, D), in the type of `x`."""
        return (x + sequence[self.table]).to(x.dtype)
