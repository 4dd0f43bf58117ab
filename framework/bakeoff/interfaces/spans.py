"""Which tokens of a row this process has, where ranks share out each row among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bakeoff.interfaces.cut import portion

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from bakeoff.interfaces.sequence import Sequence

#: How the spans of a row are shared out: rank r of P has the r-th of P, or the r-th and the r-th last of 2P.
ORDERS = ("contiguous", "zigzag")


class Spans:
    """A row of `length` tokens in `count` pieces, nearly equal, in order of time, and which rank has which of them.

    What a rank has of a tensor, it has in order of time: `take` gives it, from the whole.

    Attributes
    ----------
    group : the ranks, P of them. rank : this one.
    order : "contiguous": each has one span; "zigzag": two, so that under causal visibility all have equally much to
        look at.
    bounds : start and stop of every span. owners : the rank that has it.
    own : numbers of this rank's spans.
    whole : the sequence that is shared out.
    sequences : each of this rank's spans by itself, as a call that goes on where the span before it ended: its
        `segments` are 0 for the document of the token before it.
    """

    def __init__(self, whole: Sequence, group: ProcessGroup, order: str):
        self.whole, self.group, self.order = whole, group, order
        self.rank, self.ranks, self.length = group.rank(), group.size(), whole.length
        self.bounds = bounds(self.length, self.ranks, order)
        self.owners = owners(self.ranks, order)
        self.own = self.of(self.rank)
        self.sequences = [whole.part(*self.bounds[number]) for number in self.own]

    @property
    def count(self) -> int:
        """Spans in all."""
        return len(self.bounds)

    def of(self, rank: int) -> list[int]:
        """Numbers of the spans that a rank has."""
        return [number for number, owner in enumerate(self.owners) if owner == rank]

    def sizes(self, rank: int) -> list[int]:
        """Tokens of each span that a rank has."""
        return [stop - start for start, stop in (self.bounds[number] for number in self.of(rank))]

    def places(self, rank: int, device: torch.device | None = None) -> Tensor:
        """Places in the row of the tokens that a rank has, (tokens,) long."""
        spans = [self.bounds[number] for number in self.of(rank)]
        return torch.cat([torch.arange(start, stop, device=device) for start, stop in spans])

    def take(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's tokens of a whole tensor; one that is the same at every token, of size 1, as it is."""
        if x.shape[dim] == 1 != self.length:
            return x
        spans = [self.bounds[number] for number in self.own]
        pieces = [x.narrow(dim, start, stop - start) for start, stop in spans]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)

    def split(self, x: Tensor, dim: int = 1) -> list[Tensor]:
        """This rank's tokens, span by span."""
        return list(x.split(self.sizes(self.rank), dim))


def owners(ranks: int, order: str) -> list[int]:
    """The rank that has each span, in order of time."""
    forth = list(range(ranks))
    return forth if order == "contiguous" else [*forth, *reversed(forth)]


def bounds(length: int, ranks: int, order: str) -> list[tuple[int, int]]:
    """Start and stop of each span; `ValueError` where there are fewer tokens than spans."""
    count = len(owners(ranks, order))
    if length < count:
        raise ValueError(too_short(length, ranks, order))
    return [portion(length, count, number) for number in range(count)]


def too_short(length: int, ranks: int, order: str) -> str | None:
    """Why a row cannot be shared out so, or None."""
    count = len(owners(ranks, order))
    if length >= count:
        return None
    cut = f"{ranks} ranks, which is {count} spans" if count > ranks else f"{ranks} ranks"
    return f"a sequence of {length} tokens is shared out over {cut} ({order}), and each needs at least 1 token"
