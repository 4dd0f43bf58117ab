"""Ring attention as a function that autograd goes through.

Liu, Zaharia and Abbeel (2023), "Ring Attention with Blockwise Transformers for Near-Infinite Context",
arXiv:2310.01889. Blocks of keys and values go round, and in backward go round again, with the gradients that they have
got so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.attention.functional import Scoring
from bakeoff.parts.attention.partial import (
    add_sinks,
    attend_partially,
    merge,
    partial_gradients,
    sink_gradients,
)
from torch import Tensor

from bakeoff_ring.passing import Blocks, around, passed
from bakeoff_ring.sight import Rectangle, Step

#: Gives what a step adds to the gradients of its keys and values.
Add = Callable[[Step, Tensor, Tensor], Tensor]


def attend_around(
    q: Tensor, k: Tensor, v: Tensor, steps: list[Step], spans: Spans, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """`(out, log-sum-exp)`, (B, T, H, P) and (B, H, T), of this rank's queries over the keys and values of all ranks.

    q : (B, T, H, N), k : (B, T, K, N), v : (B, T, K, P), of one type, of this rank's tokens. The bias is (B or 1, H, T,
    S), of the S tokens of the row. No gradient flows through the log-sum-exp. All ranks call it, and its backward.
    """
    out, total = _Ring.apply(
        q, k, v, scoring.bias, scoring.sinks, steps, spans, scoring._replace(bias=None, sinks=None)
    )
    return out, total


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        steps: list[Step],
        spans: Spans,
        scoring: Scoring,
    ) -> tuple[Tensor, Tensor]:
        blocks, found = Blocks(k, v, spans), Parts(q, v)
        for step, keys, values in around(k, v, steps, blocks):
            for one in step.rectangles:
                given = q[:, one.queries], keys[:, one.keys], values[:, one.keys]
                scored = _scored(scoring, bias, one, spans, blocks.source(step))
                found.add(one.queries, *attend_partially(*given, one.seen, scored))
        out, total = found.out, found.total
        if sinks is not None:
            out, total = add_sinks(out, total, sinks)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, bias, sinks, out, total)
        ctx.steps, ctx.spans, ctx.scoring = steps, spans, scoring
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Any, ...]:
        q, k, v, bias, sinks, out, total = ctx.saved_tensors
        dout = dout.contiguous()
        by_sinks = None if sinks is None else sink_gradients(dout, out, total, sinks)
        by_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        blocks = Blocks(k, v, ctx.spans)
        wide = torch.promote_types(q.dtype, torch.float32)
        dq = torch.zeros_like(q, dtype=wide)

        def add(step: Step, keys: Tensor, values: Tensor) -> Tensor:
            """What this rank's queries add to the gradients of a block, flat; its own are added up aside."""
            source = blocks.source(step)
            flat = blocks.space(k, wide).zero_()
            dk, dv = blocks.of(flat, source)
            for one in step.rectangles:
                scored = _scored(ctx.scoring, bias, one, ctx.spans, source)
                given = q[:, one.queries], keys[:, one.keys], values[:, one.keys]
                whole = out[:, one.queries], total[:, :, one.queries]
                found = partial_gradients(dout[:, one.queries], *given, *whole, one.seen, scored)
                dq[:, one.queries] += found.q
                dk[:, one.keys] += found.k
                dv[:, one.keys] += found.v
                if by_bias is not None and found.bias is not None:
                    by_bias[:, :, one.queries, _places(one, ctx.spans, source)] += found.bias
            return flat

        dk, dv = blocks.of(gathered(k, v, ctx.steps, blocks, add), ctx.spans.rank)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), by_bias, by_sinks, None, None, None


def gathered(k: Tensor, v: Tensor, steps: list[Step], blocks: Blocks, add: Add) -> Tensor:
    """The gradients of this rank's block: what `add(step, keys, values)` gives on every rank, added up as it comes by.

    A sum is under way while the next block's part is computed; what home itself adds comes last.
    """
    own, taken, wait = None, blocks.space(k, k.dtype)[:0], None
    following = [*(step.offset for step in steps[1:]), blocks.spans.ranks]
    for (step, keys, values), offset in zip(around(k, v, steps, blocks), following, strict=True):
        flat = add(step, keys, values)
        if own is None:
            own = flat
            continue
        if wait is not None:
            wait()
            flat += taken
        taken = torch.empty_like(flat)
        wait = passed(flat, taken, step, offset, blocks)
    assert own is not None
    if wait is not None:
        wait()
        own += taken
    return own


class Parts:
    """Attention of queries `q` (B, T, H, N) over the keys that have been added so far, in float32 at least."""

    def __init__(self, q: Tensor, v: Tensor):
        (B, T, H, _), wide = q.shape, torch.promote_types(q.dtype, torch.float32)
        self.out = q.new_zeros(B, T, H, v.shape[3], dtype=wide)
        self.total = q.new_full((B, H, T), -math.inf, dtype=wide)
        self.empty = True

    def add(self, queries: slice, out: Tensor, total: Tensor) -> None:
        """`(out, log-sum-exp)` of some queries over further keys."""
        if self.empty and out.shape == self.out.shape:
            self.out, self.total = out.to(self.out.dtype), total
        else:
            before = self.out[:, queries], self.total[:, :, queries]
            self.out[:, queries], self.total[:, :, queries] = merge(*before, out, total)
        self.empty = False


def _scored(scoring: Scoring, bias: Tensor | None, one: Rectangle, spans: Spans, source: int) -> Scoring:
    """With the bias of the rectangle."""
    return scoring if bias is None else scoring._replace(bias=bias[:, :, one.queries, _places(one, spans, source)])


def _places(one: Rectangle, spans: Spans, source: int) -> Tensor:
    """The rectangle's keys, by their places in the row."""
    return spans.places(source)[one.keys]
