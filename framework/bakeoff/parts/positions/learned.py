"""A learned vector per position, added to the embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.parts.linear import Embedding


@dataclass(frozen=True)
class CheckedPositions(Need):
    """`sequence.positions`, all of them under `max_length`; padding counts as position 0.

    Raises `UserError` naming the position that is not.
    """

    max_length: int

    def derive(self, sequence: Sequence) -> Tensor:
        """Looks at the values only where so many tokens may be too many, as that waits for an accelerator.

        Ranks that share out a sequence look at all of it, so that all of them raise.
        """
        whole = sequence if sequence.spans is None else sequence.spans.whole
        positions = _of_real(whole)
        held = 0 if whole.past is None else whole.past.longest
        if held + whole.length > self.max_length:
            last = int(positions.max())
            if last >= self.max_length:
                raise UserError(
                    f"LearnedPosition: position {last} is beyond the {self.max_length} that the model was built for; "
                    "positions count from 0: give a larger model.max_length, or a position that extrapolates, as rope"
                )
        return _of_real(sequence)


def _of_real(sequence: Sequence) -> Tensor:
    """Positions, 0 for padding."""
    positions, real = sequence.positions, sequence.real
    return positions if real is None else positions.masked_fill(~real, 0)


class LearnedPosition(PositionalEncoding):
    """Adds a learned vector per position, of which there are `max_length` of the model, to the embeddings."""

    reference = Reference(
        "Gehring et al.", 2017, "Convolutional Sequence to Sequence Learning", "https://arxiv.org/abs/1705.03122"
    )
    hooks: ClassVar[frozenset[str]] = frozenset({"embed"})
    capabilities = Capabilities(context_parallel=True)

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.vectors = Embedding(context.max_length, context.d_model)
        self.places = CheckedPositions(context.max_length)

    def needs(self) -> tuple[Need, ...]:
        """The positions, checked."""
        return (self.places,)

    def embed(self, x: Tensor, sequence: Sequence) -> Tensor:
        """(B, T, D), in the type of `x`."""
        return (x + self.vectors(sequence[self.places])).to(x.dtype)
