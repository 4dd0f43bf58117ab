"""Blocks of keys and values that go round a ring of ranks, each on its way while another is computed with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from bakeoff.interfaces.spans import Spans
from torch import Tensor, distributed

from bakeoff_ring.sight import Step

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Blocks:
    """Keys (B, S, K, N) and values (B, S, K, P) of the S tokens of each rank, flat in one tensor a rank."""

    def __init__(self, k: Tensor, v: Tensor, spans: Spans):
        self.rows, self.heads, self.widths = k.shape[0], k.shape[2], (k.shape[3], v.shape[3])
        self.spans = spans
        self.tokens = [sum(spans.sizes(rank)) for rank in range(spans.ranks)]

    def source(self, step: Step) -> int:
        """The rank whose block is at hand."""
        return (self.spans.rank - step.offset) % self.spans.ranks

    def space(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """For the largest block, its values not yet made."""
        return like.new_empty(self.size(max(self.tokens)), dtype=dtype)

    def size(self, tokens: int) -> int:
        """Elements of a block of so many tokens."""
        return self.rows * tokens * self.heads * sum(self.widths)

    def of(self, flat: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a rank, within what holds them."""
        shapes = [(self.rows, self.tokens[rank], self.heads, width) for width in self.widths]
        keys = self.size(self.tokens[rank]) * self.widths[0] // sum(self.widths)
        return flat[:keys].view(shapes[0]), flat[keys : self.size(self.tokens[rank])].view(shapes[1])


def around(k: Tensor, v: Tensor, steps: list[Step], blocks: Blocks) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Each step with the keys and values of its block; the next one is under way until the next step is asked for."""
    held, spare = (blocks.space(k, k.dtype) for _ in range(2))
    for own, given in zip(blocks.of(held, blocks.spans.rank), (k, v), strict=True):
        own.copy_(given)
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        source = blocks.source(step)
        wait = None if after is None else passed(held, spare, step, after.offset, blocks)
        yield step, *blocks.of(held, source)
        if wait is not None:
            wait()
            held, spare = spare, held


def passed(flat: Tensor, into: Tensor, step: Step, offset: int, blocks: Blocks) -> Callable[[], None]:
    """Begin to hand what belongs to the block of a step on to the rank at which it has the `offset`, and to take what
    comes likewise; the result waits for both."""
    group, rank, ranks = blocks.spans.group, blocks.spans.rank, blocks.spans.ranks
    hop, source = offset - step.offset, blocks.source(step)
    sent = flat[: blocks.size(blocks.tokens[source])]
    taken = into[: blocks.size(blocks.tokens[(source - hop) % ranks])]
    return _exchanged(sent, (rank + hop) % ranks, taken, (rank - hop) % ranks, group)


def _exchanged(sent: Tensor, to: int, taken: Tensor, whence: int, group: ProcessGroup) -> Callable[[], None]:
    both = [
        distributed.P2POp(distributed.isend, sent, group=group, group_peer=to),
        distributed.P2POp(distributed.irecv, taken, group=group, group_peer=whence),
    ]
    works = distributed.batch_isend_irecv(both)

    def wait() -> None:
        for work in works:
            work.wait()
        both.clear()  # until here they keep the tensors

    return wait
