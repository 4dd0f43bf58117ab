"""What is retrieved for a batch: texts from a database that are like chunks of its rows."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

#: The name under which a sequence's memory holds them.
NEIGHBOURS = "neighbours"
#: The name under which a backbone shows what its embedding makes of their tokens, (B, C, k, L, D).
EMBEDDED = "embedded_neighbours"


class Neighbours:
    """For chunks of each row, `k` texts that are like the chunk, each with what follows it: `L` tokens.

    The tokens of a document, from its first in the row, are its chunks, so many tokens each; a last one that is not
    whole has no neighbours. A chunk's neighbours may be seen from its last token on, and no token of another document
    may see them. Opaque, as `Sequence` is: what shards a model does not look inside.

    Attributes
    ----------
    tokens : (B, C, k, L) long.
    real : (B, C, k, L) bool, False behind the end of a text, and for all of one that was not found.
    last : (B, C) long, the sequence's `index` at the last token of each chunk, ascending; -1 for what is no chunk.
    """

    __slots__ = ("last", "real", "tokens")

    def __init__(self, tokens: Tensor, real: Tensor, last: Tensor):
        if tokens.ndim != 4 or real.shape != tokens.shape or last.shape != tokens.shape[:2]:
            raise ValueError(
                f"neighbours are tokens and real (B, C, k, L) and last (B, C), not {tuple(tokens.shape)}, "
                f"{tuple(real.shape)} and {tuple(last.shape)}"
            )
        self.tokens, self.real, self.last = tokens, real, last

    @classmethod
    def of(cls, batch: Mapping[str, Tensor | None]) -> dict[str, Neighbours]:
        """What a batch adds to the memory of its sequence, where it holds the three of `BATCHED`."""
        held = [batch.get(name) for name in BATCHED]
        if any(tensor is None for tensor in held):
            return {}
        return {NEIGHBOURS: cls(*held)}  # type: ignore[arg-type]


#: What a batch calls the three.
BATCHED = ("neighbours", "neighbours_real", "neighbours_last")
