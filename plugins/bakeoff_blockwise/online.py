"""Softmax attention by blocks of queries and keys, with an online softmax, as a function that autograd goes through."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from bakeoff.parts.attention.functional import Scoring
from bakeoff.parts.attention.partial import (
    add_sinks,
    attend_partially,
    merge,
    partial_gradients,
    sink_gradients,
)
from bakeoff.parts.attention.room import Room, room_of
from torch import Tensor

from bakeoff_blockwise.kept import attended

if TYPE_CHECKING:
    from bakeoff_blockwise.tiles import Tiles

#: Keys at once of which the fused kernel is given a mask, or gives gradients.
KEYS = 1024


def attend_in_tiles(q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """`(out, log-sum-exp)`, (B, T, H, P) and (B, H, T), of `q` (B, T, H, N) over `k` (B, S, K, N) and `v` (B, S, K, P).

    No gradient flows through the log-sum-exp.
    """
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    rooms = room_of(k), room_of(v)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    rest = scoring._replace(bias=None, sinks=None)
    out, total = _Attention.apply(q, k, v, scoring.bias, scoring.sinks, tiles, rest, rooms)
    return out, total


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        tiles: Tiles,
        rest: Scoring,
        rooms: tuple[Room | None, Room | None],
    ) -> tuple[Tensor, Tensor]:
        scoring = rest._replace(bias=bias, sinks=sinks)
        out, total = attended(lambda: _attend(q, k, v, tiles, scoring))
        ctx.save_for_backward(q, k, v, bias, sinks, out, total)
        ctx.mark_non_differentiable(total)
        ctx.tiles, ctx.rest, ctx.rooms = tiles, rest, rooms
        return out, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, sinks, out, total = ctx.saved_tensors
        given = _gradients(dout, q, k, v, out, total, ctx.tiles, ctx.rest._replace(bias=bias), ctx.rooms)
        return *given, None if sinks is None else sink_gradients(dout, out, total, sinks), None, None, None


def _attend(q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, scoring: Scoring) -> tuple[Tensor, Tensor]:
    blocks = [_attend_block(q[:, block], k, v, tiles, scoring, block) for block in tiles.blocks(q.shape[1])]
    if len(blocks) == 1:
        return blocks[0]
    outs, totals = zip(*blocks, strict=True)
    return torch.cat(outs, 1), torch.cat(totals, 2)


def _attend_block(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, scoring: Scoring, block: slice
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] | None = None
    for keys, seen in tiles.of(block, k.shape[1], _most(tiles, scoring), None if _explicit(scoring) else k.shape[1]):
        part = attend_partially(q, k[:, keys], v[:, keys], seen, _cut(scoring, block, keys))
        found = part if found is None else merge(*found, *part)
    if found is None:
        wide = torch.promote_types(q.dtype, torch.float32)
        B, T, H = q.shape[:3]
        found = q.new_zeros(B, T, H, v.shape[3]), q.new_full((B, H, T), -math.inf, dtype=wide)
    out, total = found if scoring.sinks is None else add_sinks(*found, scoring.sinks)
    return out.to(q.dtype), total


def _gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    tiles: Tiles,
    scoring: Scoring,
    rooms: tuple[Room | None, Room | None],
) -> tuple[Tensor | None, ...]:
    """Of queries, keys, values and bias, summed up in float32 at least; what a room takes is not returned."""
    wide = torch.promote_types(q.dtype, torch.float32)
    dq = torch.zeros_like(q, dtype=wide)
    dk, dv = (
        torch.zeros_like(x, dtype=wide) if room is None else room.gradient(x)
        for x, room in zip((k, v), rooms, strict=True)
    )
    bias = scoring.bias
    dbias = None if bias is None else torch.zeros_like(bias, dtype=wide)
    for block in tiles.blocks(q.shape[1]):
        by_out, queries, given, sums = dout[:, block], q[:, block], out[:, block], total[..., block]
        for keys, seen in tiles.of(block, k.shape[1], _most(tiles, scoring)):
            part = partial_gradients(
                by_out, queries, k[:, keys], v[:, keys], given, sums, seen, _cut(scoring, block, keys)
            )
            dq[:, block] += part.q
            dk[:, keys] += part.k
            dv[:, keys] += part.v
            if dbias is not None and part.bias is not None:
                dbias[..., block, keys] += part.bias
    by_k, by_v = (dx.to(x.dtype) if room is None else None for dx, x, room in zip((dk, dv), (k, v), rooms, strict=True))
    return dq.to(q.dtype), by_k, by_v, None if dbias is None or bias is None else dbias.to(bias.dtype)


def _explicit(scoring: Scoring) -> bool:
    """Whether logits are made."""
    return scoring.soft_cap is not None or scoring.bias is not None


def _most(tiles: Tiles, scoring: Scoring) -> int:
    return tiles.chunk if _explicit(scoring) else max(tiles.chunk, KEYS)


def _cut(scoring: Scoring, block: slice, keys: slice) -> Scoring:
    return scoring if scoring.bias is None else scoring._replace(bias=scoring.bias[..., block, keys])
