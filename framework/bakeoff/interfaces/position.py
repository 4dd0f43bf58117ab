"""Kind `position`: how order enters the model."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.sequence import Sequence


class PositionalEncoding(Part):
    """Up to three hooks; `hooks` names those that a class defines, and who cannot call one refuses it by name.

    Positions are always `sequence.positions`, never counted from the shape of what happens to be there. Tables and
    biases are float32 and derived once per forward (see `needs`).
    """

    kind = "position"
    hooks: ClassVar[frozenset[str]]
    relative: ClassVar[bool] = False
    """Only differences of positions matter."""

    def embed(self, x: Tensor, sequence: Sequence) -> Tensor:
        """Token embeddings (B, T, D) with positions added (hook "embed", called by the backbone)."""
        raise CapabilityError(
            f"{type(self).__name__} does not act on embeddings; it defines {', '.join(sorted(self.hooks))}"
        )

    def rotate(self, q: Tensor, k: Tensor, sequence: Sequence) -> tuple[Tensor, Tensor]:
        """Queries (B, T, H, N) and keys (B, T, K, N) of this call, rotated (hook "rotate", called by attention)."""
        return q, k

    def bias(self, sequence: Sequence, rolling: bool = False) -> Tensor | None:
        """Added to the attention logits, (B or 1, H, T, S) (hook "bias"); keys as in `AttentionOp.forward`."""
        return None
