"""What ranks that share out a sequence tell each other, differentiated: see `bakeoff.interfaces.spans.Spans`."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from bakeoff.interfaces.spans import Spans
from bakeoff.interfaces.state import last_places, map_state
from bakeoff.parts.collectives import all_joined, joined_to_enter, paired

Told = tuple[Tensor, ...]


def whole_row(x: Tensor, spans: Spans, dim: int = 1) -> Tensor:
    """All tokens in order of time, from every rank's own; all ranks make the same of them."""
    return paired(x, lambda value: _together(value, spans, dim), lambda dy: spans.take(dy, dim).contiguous())


def of_all(own: Items[Tensor], spans: Spans) -> list[Tensor]:
    """Of every span, in order of time, a tensor of one shape that its rank tells; each rank adds to its gradient."""
    stacked = torch.stack(list(own))
    every = joined_to_enter(stacked, 0, spans.count, spans.group).unbind(0)
    told: dict[int, Tensor] = {}
    for rank in range(spans.ranks):
        told |= zip(spans.of(rank), every[rank * len(own) :], strict=False)
    return [told[number] for number in range(spans.count)]


def before_each(x: Tensor, places: int, spans: Spans) -> list[Tensor]:
    """What stands in the last `places` places before each of this rank's spans, (B, places, …), of its `x` (B, T, …).

    Zeros stand before the row.
    """
    if not places:
        return [x[:, :0] for _ in spans.own]
    ends = of_all([last_places(piece, places) for piece in spans.split(x)], spans)
    sizes = [min(places, stop - start) for start, stop in spans.bounds]
    ends = [end[:, places - size :] for end, size in zip(ends, sizes, strict=True)]
    return [last_places(torch.cat([ends[0][:, :0], *ends[:number]], 1), places) for number in spans.own]


def relay(
    own: Items[Told], follow: Callable[[Any, Told], Any], empty: Any, spans: Spans, *, reverse: bool = False
) -> list[Any]:
    """The state that each of this rank's spans begins with; in `reverse`, that each ends with.

    `own` : of each own span, tensors of one shape over all spans that tell how it changes a state, such as the product
        of its decays and the state that it leaves of itself.
    `follow(state, told)` : the state after a span, from that before it and what the span tells.
    `empty` : the state before the row.
    `reverse` : what passes from the row's end to its beginning, such as gradients: before and after change places.

    All ranks call it alike, under gradients or not, and let what they make of every state be part of their outputs:
    the backward of each waits for the others.
    """
    shapes, types = [t.shape for t in own[0]], [t.dtype for t in own[0]]
    wide = reduce(torch.promote_types, types)
    flat = of_all([torch.cat([t.to(wide).reshape(-1) for t in told]) for told in own], spans)
    bound = flat[0][:0].sum()  # a zero, by which a rank that needs nothing takes part in the backward
    states, state = {}, map_state(lambda t: t + bound.to(t.dtype), empty)
    order = range(spans.count - 1, spans.own[0] - 1, -1) if reverse else range(spans.own[-1] + 1)
    for number in order:
        if number in spans.own:
            states[number] = state
        if number != order[-1]:
            pieces = flat[number].split([shape.numel() for shape in shapes])
            told = tuple(t.view(shape).to(kind) for t, shape, kind in zip(pieces, shapes, types, strict=True))
            state = follow(state, told)
    return [states[number] for number in spans.own]


def _together(x: Tensor, spans: Spans, dim: int) -> Tensor:
    sizes = [sum(spans.sizes(rank)) for rank in range(spans.ranks)]
    most = max(sizes)
    lying = x.movedim(dim, 0)
    padded = torch.cat([lying, lying.new_zeros(most - len(lying), *lying.shape[1:])])
    every = all_joined(padded, 0, most * spans.ranks, spans.group).split(most)
    pieces: dict[int, Tensor] = {}
    for rank, piece in enumerate(every):
        pieces |= zip(spans.of(rank), piece[: sizes[rank]].split(spans.sizes(rank)), strict=True)
    return torch.cat([pieces[number] for number in range(spans.count)]).movedim(0, dim).contiguous()
