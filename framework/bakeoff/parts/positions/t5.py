"""Relative position buckets with a learned bias."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.cut import Cut
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.parts.linear import Embedding
from bakeoff.parts.positions.relative import relative_positions


def one_sided_buckets(ahead: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Bucket of each distance back, `-ahead`: its own up to `buckets` / 2, then logarithmic up to `max_distance`.

    What lies ahead falls into bucket 0, what lies at `max_distance` or beyond into the last one.
    """
    back = (-ahead).clamp_min(0)
    exact = buckets // 2
    ratio = torch.log(back.clamp_min(exact).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp_max(buckets - 1)
    return torch.where(back < exact, back, far)


def two_sided_buckets(ahead: Tensor, buckets: int, max_distance: int) -> Tensor:
    """One-sided buckets of the absolute distance, in the first half for what lies back and the second for ahead."""
    half = buckets // 2
    return one_sided_buckets(-ahead.abs(), half, max_distance) + half * (ahead > 0)


class BucketTable(Part):
    """A learned bias per bucket and head, one table for all layers."""

    capabilities = Capabilities(
        documents=True,
        padding=True,
        state=True,
        constant_state=True,
        bidirectional=True,
        compile=True,
        tensor_parallel=True,
    )

    def __init__(self, context: LayerContext, *, buckets: int, n_heads: int):
        super().__init__(context)
        self.values = Embedding(buckets, n_heads)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has the biases of its heads."""
        return {"values.weight": Cut(1)}

    def forward(self, bucket: Tensor) -> Tensor:
        """(B, T, S) long -> (B, H, T, S)."""
        return self.values(bucket).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class BucketBias(Need):
    """The table's bias for every query and key, (B or 1, H, T, S), with its gradient."""

    table: BucketTable
    buckets: int
    max_distance: int
    window: int | None
    rolling: bool

    def derive(self, sequence: Sequence) -> Tensor | None:
        """None where no rolling cache can be."""
        ahead = relative_positions(sequence, self.window, self.rolling)
        if ahead is None:
            return None
        if sequence.visibility == "causal":
            return self.table(one_sided_buckets(ahead, self.buckets, self.max_distance))
        both = two_sided_buckets(ahead, self.buckets, self.max_distance)
        if sequence.prefix is None:
            return self.table(both)
        in_prefix = (sequence.positions < sequence.prefix)[:, :, None]
        return self.table(torch.where(in_prefix, both, one_sided_buckets(ahead, self.buckets, self.max_distance)))


class T5Position(PositionalEncoding):
    """Adds a learned bias per head and bucket of distance to the attention logits; one table serves all layers.

    Queries that see keys on both sides (bidirectional visibility, or inside a prefix) use half of the buckets for each
    side, others all of them for the past. T5 itself leaves logits unscaled: give its attention `scale: 1`.

    Parameters
    ----------
    buckets : an even number, at least 4.
    max_distance : distances from here on share the last bucket.

    Raises `UserError` if `max_distance` is not beyond the buckets of a single distance, `buckets` / 2.
    """

    reference = Reference(
        "Raffel et al.", 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", "https://arxiv.org/abs/1910.10683"
    )  # fmt: skip
    hooks: ClassVar[frozenset[str]] = frozenset({"bias"})
    capabilities = Capabilities(tensor_parallel=True, context_parallel=True)
    relative: ClassVar[bool] = True

    def __init__(self, context: LayerContext, *, buckets: int = 32, max_distance: int = 128):
        super().__init__(context)
        H = context.n_heads
        if H is None:
            raise UserError(
                "T5Position adds to attention logits: give it to a mixer, as in mixer: {position: {use: t5_position}}"
            )
        if buckets < 4 or buckets % 2 or max_distance <= buckets // 2:
            raise UserError(
                f"T5Position: buckets is {buckets} and max_distance {max_distance}; "
                "buckets must be even and at least 4, and max_distance over half of it"
            )
        name = f"t5_position_{buckets}_{H}"
        self.table = context.shared(name, partial(BucketTable, buckets=buckets, n_heads=H))
        kinds = (False,) if context.window is None else (False, True)
        self.kinds = {rolling: (buckets, max_distance, context.window, rolling) for rolling in kinds}

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Buckets for one distance each, and shared ones."""
        return [{}, {"buckets": 4, "max_distance": 6}]

    def needs(self) -> tuple[Need, ...]:
        """The bias over the keys of a growing cache and, with a window, of a rolling one."""
        return tuple(self._need(rolling) for rolling in self.kinds)

    def bias(self, sequence: Sequence, rolling: bool = False) -> Tensor | None:
        """(B or 1, H, T, S)."""
        return sequence[self._need(rolling)]

    def _need(self, rolling: bool) -> BucketBias:
        return BucketBias(self.table.module, *self.kinds[rolling])
