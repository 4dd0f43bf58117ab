"""A causal window as a band: blocks of queries, each over its own block of keys and the few before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff.interfaces.past import Entries
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.parts.attention.functional import Scoring, Visible, attend
from bakeoff.parts.attention.masks import VisibleKeys, rolls, visible


class Band(NamedTuple):
    """What each block of `width` queries sees of its own block of keys and the `before` blocks before it.

    `mask` is (B blocks, 1, width, (before + 1) width).
    """

    mask: Tensor
    width: int
    before: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor | None]:
        """`attend_in_band` over what is visible."""
        return attend_in_band(q, k, v, self, scoring)


def block_width(window: int) -> int:
    """Queries per block: half a window, where least time was measured, but not so few that blocks are too many."""
    return max(32, -(-window // 2))


def blocks_before(window: int, width: int) -> int:
    """Blocks before its own that a query can see."""
    return -(-(window - 1) // width)


@dataclass(frozen=True)
class BandOfKeys(Need):
    """A `Band` where the call's own tokens are all the keys, else `Visible`.

    The band needs causal visibility, no past, and a sequence of at least `shortest` tokens.
    """

    window: int
    shortest: int
    rolling: bool = False

    def derive(self, sequence: Sequence) -> Band | Visible | None:
        """None where no rolling cache can be."""
        if self.rolling and not rolls(sequence):
            return None
        own = sequence.visibility == "causal" and self._own_keys(sequence)
        if own and sequence.length >= self.shortest:
            width = block_width(self.window)
            before = blocks_before(self.window, width)
            return Band(self._mask(sequence, width, before), width, before)
        return VisibleKeys(self.window, self.rolling).derive(sequence)

    def _own_keys(self, sequence: Sequence) -> bool:
        past, real = sequence.past, sequence.real
        if past is not None and past.longest > 0:
            return False
        if real is None:
            return True
        if past is not None and past.slots and not self.rolling:
            return False  # a growing cache closes the gaps of padding, so that its keys are in another order
        runs = (real[:, 1:] & ~real[:, :-1]).sum(1) + real[:, 0]
        return bool((runs <= 1).all())  # padding between real tokens would widen the band

    def _mask(self, sequence: Sequence, width: int, before: int) -> Tensor:
        real = torch.ones_like(sequence.index, dtype=torch.bool) if sequence.real is None else sequence.real
        places = (sequence.index, sequence.positions, sequence.documents, real)
        blocks = [None if x is None else in_blocks(x.expand(sequence.batch, -1), width) for x in places]
        queries = Entries(*(None if x is None else x.flatten(0, 1) for x in blocks))  # type: ignore[arg-type]
        keys = Entries(*(None if x is None else with_previous(x, before).flatten(0, 1) for x in blocks))  # type: ignore[arg-type]
        return visible(queries, keys, self.window)[:, None]


def in_blocks(x: Tensor, width: int) -> Tensor:
    """(B, T, …) -> (B, blocks, width, …), the last block filled up with zeros."""
    missing = -x.shape[1] % width
    if missing:
        x = torch.cat([x, x.new_zeros(x.shape[0], missing, *x.shape[2:])], 1)
    return x.unflatten(1, (-1, width))


def with_previous(blocks: Tensor, before: int) -> Tensor:
    """(B, blocks, width, …) -> (B, blocks, (before + 1) width, …): each with those before, zeros ahead of the first."""
    led = _WithPrevious.apply(blocks, before)
    assert isinstance(led, Tensor)
    return led


class _WithPrevious(torch.autograd.Function):
    """The gradient of a block is added up in place, where that of slices would fill a tensor for each of them."""

    @staticmethod
    def forward(ctx: Any, blocks: Tensor, before: int) -> Tensor:
        ctx.before, count = before, blocks.shape[1]
        led = torch.cat([blocks.new_zeros(blocks.shape[0], before, *blocks.shape[2:]), blocks], 1)
        return torch.cat([led[:, i : i + count] for i in range(before + 1)], 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        *earlier, own = grads[0].unflatten(2, (ctx.before + 1, -1)).unbind(2)
        total, count = own.clone(), own.shape[1]
        for distance, grad in enumerate(reversed(earlier), start=1):
            if distance < count:
                total[:, : count - distance] += grad[:, distance:]
        return total, None


def bias_of_blocks(bias: Tensor, width: int, before: int, batch: int) -> Tensor:
    """(B or 1, H, T, T) -> (B blocks, H, width, (before + 1) width)."""
    missing = -bias.shape[2] % width
    bias = F.pad(bias, (before * width, missing, 0, missing))
    bands = bias.unfold(3, (before + 1) * width, width)  # (B, H, T, blocks, keys)
    bands = bands.unflatten(2, (-1, width)).diagonal(dim1=2, dim2=4)  # (B, H, width, keys, blocks)
    return bands.movedim(-1, 1).expand(batch, -1, -1, -1, -1).flatten(0, 1)


def attend_in_band(q: Tensor, k: Tensor, v: Tensor, band: Band, scoring: Scoring) -> tuple[Tensor, Tensor | None]:
    """`attend` where queries and keys are the same T tokens, and no query sees beyond its band."""
    B, T = q.shape[:2]
    queries = in_blocks(q, band.width).flatten(0, 1)  # (B blocks, width, H, N)
    keys, values = (with_previous(in_blocks(x, band.width), band.before).flatten(0, 1) for x in (k, v))
    if scoring.bias is not None:
        scoring = scoring._replace(bias=bias_of_blocks(scoring.bias, band.width, band.before, B))
    out, total = attend(queries, keys, values, Visible(band.mask), scoring)
    out = out.unflatten(0, (B, -1)).flatten(1, 2)[:, :T]
    if total is not None:  # (B blocks, H, width) -> (B, H, T)
        total = total.unflatten(0, (B, -1)).transpose(1, 2).flatten(2)[..., :T]
    return out, total
