"""The auction: rows to columns of given room, so that the summed score is largest."""

from __future__ import annotations

import torch
from torch import Tensor

#: The smallest raise of a bid, relative to the range of the scores, and by what raises shrink from phase to phase.
_TOLERANCE, _SHRINK = 1e-8, 32.0

#: What stands for an infinite score.
_LARGEST = 1e38


def assign(scores: Tensor, room: Tensor) -> Tensor:
    """(N, E) scores and (E,) long places, N in all -> (N,) long: the column of each row, every place taken.

    The sum of the scores is within 1e-8 N times their range of the largest there is (Bertsekas 1988). NaN counts as 0.
    """
    scores = scores.detach().double().nan_to_num(0.0, _LARGEST, -_LARGEST)
    if not scores.numel():
        return room.new_zeros(len(scores))
    (those,) = room.nonzero(as_tuple=True)
    scores, room = scores[:, those], room[those]
    scores = scores - scores.amax(1, keepdim=True)  # what all columns have in common decides nothing
    spread = torch.where(scores.min() < 0, -scores.min(), 1.0)
    prices, raised = scores.new_zeros(len(room)), 0.25
    while True:
        columns, prices = _phase(scores, room, prices, raised * spread)
        if raised <= _TOLERANCE:
            return those[columns]
        raised = max(raised / _SHRINK, _TOLERANCE)


def _phase(scores: Tensor, room: Tensor, prices: Tensor, raised: Tensor) -> tuple[Tensor, Tensor]:
    """Bids until every row has a column, each `raised` above what its second choice would warrant."""
    N, E = scores.shape
    bids, columns = scores.new_full((N,), -torch.inf), room.new_zeros(N)
    free, places = torch.arange(N, device=scores.device), torch.arange(N, device=scores.device)
    while len(free):  # each bids for its best column, and each column keeps the highest bids that it has room for
        own = scores[free]
        best, wanted = (own - prices).topk(min(2, E))
        columns[free] = wanted[:, 0]
        bids[free] = own.gather(1, wanted[:, :1])[:, 0] - best[:, -1] + raised
        order = bids.argsort(descending=True, stable=True)
        order = order[columns[order].argsort(stable=True)]
        ordered = columns[order]
        ends = torch.searchsorted(ordered, torch.arange(1, E + 1, device=ordered.device))
        starts = ends - ends.diff(prepend=ends.new_zeros(1))
        lost = order[places - starts[ordered] >= room[ordered]]
        bids[lost] = -torch.inf
        last = bids[order[(starts + room - 1).clamp_max(N - 1)]]
        prices = torch.where(ends - starts >= room, last, prices)
        free = lost
    return columns, prices
