"""Attention over those of many past keys that have the largest inner products with a query; keys get no gradient.

    S = the `count` keys of largest q . k beyond the window      out = sum over S of softmax_S(scale q . k) v

Of keys with equal products the newer one is taken. It is done by blocks of queries: no tensor holds a number per query
and key of a longer sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from bakeoff.interfaces import Entries, Need, Sequence
from bakeoff.parts.attention.masks import held_keys, rolls
from torch import Tensor

#: Numbers that a block makes of its queries and their keys, at most, on a CPU and elsewhere.
_NUMBERS = {"cpu": 1 << 20}
_NUMBERS_ELSEWHERE = 1 << 26


class Block(NamedTuple):
    """Queries `start` to `stop` of a call, the keys `first` to `last` among which theirs are, and which each may look
    up, `mask` (B or 1, stop - start, last - first)."""

    start: int
    stop: int
    first: int
    last: int
    mask: Tensor


class Beyond(NamedTuple):
    """Which keys a query may look up: real ones of its document, `window` tokens or more before it, the newest `memory`
    of those (None: all); distances are those of `index`.

    `loose` : so many keys, from the first on, stand in any order; the others are the call's own tokens, in order.
    """

    queries: Entries
    keys: Entries
    window: int
    memory: int | None
    loose: int

    def blocks(self, rows: int) -> Iterator[Block]:
        """Blocks of at most `rows` queries; those that have no key to look up are left out."""
        T, S = self.queries.index.shape[1], self.keys.index.shape[1]
        for start in range(0, T, rows):
            stop = min(start + rows, T)
            last = max(self.loose, S - T + stop - self.window)
            first = 0
            if self.memory is not None and self.keys.real is None:  # so that places are as far apart as indices
                first = max(0, S - T + start - self.window - self.memory + 1)
            if first < last:
                yield Block(start, stop, first, last, self.mask(slice(start, stop), slice(first, last)))

    def mask(self, queries: slice, keys: slice) -> Tensor:
        """(B or 1, T, S) bool, of some queries and some keys."""
        behind = self.queries.index[:, queries, None] - self.keys.index[:, None, keys]
        seen = behind >= self.window
        if self.memory is not None:
            seen &= behind < self.window + self.memory
        if self.queries.documents is not None and self.keys.documents is not None:
            seen = seen & (self.queries.documents[:, queries, None] == self.keys.documents[:, None, keys])
        return seen if self.keys.real is None else seen & self.keys.real[:, None, keys]


@dataclass(frozen=True)
class KeysBeyond(Need):
    """`Beyond` for the keys of a growing cache, or of a rolling one of `window` + `memory` slots."""

    window: int
    memory: int | None
    rolling: bool = False

    def derive(self, sequence: Sequence) -> Beyond | None:
        """None where no rolling cache can be, as nobody asks then."""
        if self.rolling and not rolls(sequence):
            return None
        queries = Entries(sequence.index, sequence.positions, sequence.documents, sequence.real)
        slots = self.window + self.memory if self.rolling and self.memory is not None else None
        keys = held_keys(sequence, slots, self.rolling)
        S, T = keys.index.shape[1], sequence.length
        return Beyond(queries, keys, self.window, self.memory, (S if T == 1 else S - T) if self.rolling else 0)


def look_up(q: Tensor, k: Tensor, v: Tensor, beyond: Beyond, count: int, scale: float) -> tuple[Tensor, Tensor]:
    """`(out, found)`, (B, T, H, P) and (B, T, H) bool, of `q` (B, T, H, N), `k` (B, S, K, N) and `v` (B, S, K, P).

    Query head h reads key head h // (H / K). Products, softmax and sums are float32 at least. A query that has no key
    to look up gets zeros, and `found` False.
    """
    out, found = _LookUp.apply(q, k, v, beyond, count, scale)
    return out, found


def largest(scores: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of `scores` (…, S), or all where there are fewer, and their places, (…, count) each.

    Of equal ones those of larger `index` (…, S), which is not negative. Their order is left open.
    """
    S = scores.shape[-1]
    if count >= S:
        return scores, torch.arange(S, device=scores.device).expand_as(scores)
    values, places = scores.topk(count + 1)
    edge = values[..., count - 1 : count]
    torn = (edge == values[..., count:])[..., 0] & (edge[..., 0] > -math.inf)
    values, places = values[..., :count], places[..., :count]
    if _any(torn):
        edge, above = edge[torn], (values > edge)[torn]
        equal = torch.where(scores[torn] == edge, index.expand_as(scores)[torn], -1).topk(count).indices
        at = torch.arange(count, device=scores.device) - above.sum(-1, keepdim=True)
        places = places.masked_scatter(
            torn[..., None], torch.where(above, places[torn], equal.gather(-1, at.clamp_min(0)))
        )
    return values, places


def _any(marks: Tensor) -> bool:
    """Whether one is True; none is where a step is planned on shapes alone."""
    return not (marks.is_meta or isinstance(marks, torch._subclasses.FakeTensor)) and bool(marks.any())


class _LookUp(torch.autograd.Function):
    """With P the softmax over what a query found, the gradient of a logit is P_j (dout . v_j - dout . out)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, beyond: Beyond, count: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """(B, T, H, N), (B, S, K, N), (B, S, K, M) -> what each query reads (B, T, H, M), and whether it found any."""
        (B, T, H, _), S = q.shape, k.shape[1]
        rows = _rows(q, S, v.shape[3], count)
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = q.new_zeros(B, T, H, min(count, S), dtype=wide)
        places = torch.zeros(weights.shape, dtype=torch.int32, device=q.device)
        out, found = q.new_zeros(B, T, H, v.shape[3]), torch.zeros(B, T, H, dtype=torch.bool, device=q.device)
        with torch.autocast(q.device.type, enabled=False):
            searched = k.to(wide).transpose(1, 2).flatten(0, 1)  # (B K, S, N)
            for block in beyond.blocks(rows):
                here, keys = slice(block.start, block.stop), slice(block.first, block.last)
                scores = _products(q[:, here].to(wide), searched[:, keys])  # (B, t, H, keys)
                scores = scores.masked_fill_(~block.mask[:, :, None], -math.inf)
                values, chosen = largest(scores, beyond.keys.index[:, None, None, keys], count)
                some = slice(0, values.shape[-1])
                none = values.amax(-1, keepdim=True) == -math.inf
                share = torch.softmax((scale * values).masked_fill(none, 0.0), -1).masked_fill(none, 0.0)
                weights[:, here, :, some], found[:, here] = share, ~none[..., 0]
                places[:, here, :, some] = chosen + block.first
                out[:, here] = _summed(weights[:, here], _chosen(v, places[:, here]))
        ctx.save_for_backward(k, v, places, weights)
        ctx.scale, ctx.rows, ctx.dtype = scale, rows, q.dtype
        ctx.mark_non_differentiable(found)
        return out, found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        k, v, places, weights = ctx.saved_tensors
        dq = []
        with torch.autocast(dout.device.type, enabled=False):
            for grad, at, share in zip(*(x.split(ctx.rows, 1) for x in (dout, places, weights)), strict=True):
                by_weights = (_chosen(v, at).to(share.dtype) @ grad.to(share.dtype)[..., None])[..., 0]
                by_logits = share * (by_weights - (share * by_weights).sum(-1, keepdim=True))
                dq.append((ctx.scale * _summed(by_logits, _chosen(k, at))).to(ctx.dtype))
        return torch.cat(dq, 1), None, None, None, None, None


def _rows(q: Tensor, keys: int, width: int, count: int) -> int:
    """Queries of a block: what is found takes `count` vectors a query, what is searched a number a key."""
    B, T, H, N = q.shape
    numbers = _NUMBERS.get(q.device.type, _NUMBERS_ELSEWHERE)
    return max(1, min(T, numbers // max(1, B * H * max(keys, count * max(N, width)))))


def _products(q: Tensor, k: Tensor) -> Tensor:
    """(B, T, H, N) and (B K, S, N) -> (B, T, H, S)."""
    (B, T, H, N), S = q.shape, k.shape[1]
    K = k.shape[0] // B
    grouped = q.unflatten(2, (K, -1)).transpose(1, 2).reshape(B * K, T * H // K, N)
    return (grouped @ k.mT).view(B, K, T, H // K, S).transpose(1, 2).flatten(2, 3)


def _chosen(x: Tensor, places: Tensor) -> Tensor:
    """(B, S, K, N) at `places` (B, T, H, count) -> (B, T, H, count, N)."""
    B, _, H, _ = places.shape
    rows = torch.arange(B, device=x.device)[:, None, None, None]
    heads = torch.arange(H, device=x.device)[:, None] // (H // x.shape[2])
    return x[rows, places, heads]


def _summed(weights: Tensor, vectors: Tensor) -> Tensor:
    """(…, count) and (…, count, N) -> (…, N), in the type of the weights."""
    return (weights[..., None, :] @ vectors.to(weights.dtype))[..., 0, :]


def look_up_naively(q: Tensor, k: Tensor, v: Tensor, beyond: Beyond, count: int, scale: float) -> tuple[Tensor, Tensor]:
    """`look_up` by its definition, one query of one head at a time."""
    (B, T, H, _), (S, K) = q.shape, k.shape[1:3]
    out, found = q.new_zeros(B, T, H, v.shape[3]), torch.zeros(B, T, H, dtype=torch.bool, device=q.device)
    mask = beyond.mask(slice(0, T), slice(0, S)).expand(B, T, S)
    index = beyond.keys.index.expand(B, S)
    for b, t, h in torch.cartesian_prod(*(torch.arange(n) for n in (B, T, H))).tolist():
        at = mask[b, t].nonzero()[:, 0].tolist()
        if not at:
            continue
        products = q[b, t, h][None] @ k[b, at, h * K // H].mT  # (1, keys)
        newest = sorted(range(len(at)), key=lambda i: (-products[0, i].item(), -index[b, at[i]].item()))[:count]
        weights = torch.softmax(scale * products[:, newest], 1)
        out[b, t, h] = (weights @ v[b, [at[i] for i in newest], h * K // H])[0]
        found[b, t, h] = True
    return out, found
