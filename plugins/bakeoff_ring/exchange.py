"""All heads of a rank's tokens for all tokens of a rank's heads, and back, differentiated."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items

import torch
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.collectives import paired
from torch import Tensor, distributed


def to_heads(x: Tensor, spans: Spans) -> Tensor:
    """(B, T, H, N) of this rank's tokens -> (B, S, H / P, N): all S tokens, in order, of its share of the heads."""
    return paired(x, lambda value: _gather_tokens(value, spans), lambda dy: _gather_heads(dy, spans))


def to_tokens(x: Tensor, spans: Spans) -> Tensor:
    """(B, S, H / P, N) -> (B, T, H, N): undoes `to_heads`."""
    return paired(x, lambda value: _gather_heads(value, spans), lambda dy: _gather_tokens(dy, spans))


def _gather_tokens(x: Tensor, spans: Spans) -> Tensor:
    B, N, share = x.shape[0], x.shape[3], x.shape[2] // spans.ranks
    shapes = [(B, sum(spans.sizes(rank)), share, N) for rank in range(spans.ranks)]
    came = _exchanged(list(x.split(share, 2)), shapes, spans)
    pieces: dict[int, Tensor] = {}
    for rank, piece in enumerate(came):
        pieces |= zip(spans.of(rank), piece.split(spans.sizes(rank), 1), strict=True)
    return torch.cat([pieces[number] for number in range(spans.count)], 1)


def _gather_heads(x: Tensor, spans: Spans) -> Tensor:
    span = x.split([stop - start for start, stop in spans.bounds], 1)
    leaving = [torch.cat([span[number] for number in spans.of(rank)], 1) for rank in range(spans.ranks)]
    own = leaving[spans.rank].shape
    return torch.cat(_exchanged(leaving, [tuple(own)] * spans.ranks, spans), 2)


def _exchanged(leaving: list[Tensor], shapes: Items[tuple[int, ...]], spans: Spans) -> list[Tensor]:
    """What each rank has sent here, of such shapes; `leaving[r]` goes to rank r."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.cat([x.reshape(-1) for x in leaving])
    came = flat.new_empty(sum(sizes))
    distributed.all_to_all_single(came, flat, sizes, [x.numel() for x in leaving], group=spans.group)
    return [piece.view(shape) for piece, shape in zip(came.split(sizes), shapes, strict=True)]
