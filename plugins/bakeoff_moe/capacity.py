"""Experts that have room for so many tokens of a document, and no more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import torch
from bakeoff.interfaces import LayerContext, Need, Sequence
from torch import Tensor

from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.scores import ScoredRouter
from bakeoff_moe.whole_rows import chosen_of_all


class Grouped(NamedTuple):
    """Of N = B T tokens: which group each belongs to, how many real tokens that group has, and whether it is real.

    `group` and `size` are (N,) long, `real` (N,) bool or None.
    """

    group: Tensor
    size: Tensor
    real: Tensor | None


@dataclass(frozen=True)
class TokenGroups(Need):
    """The tokens of a call that share an expert's room, a `Grouped`: those of one document of one row.

    Where ranks share out the rows, of all tokens.
    """

    def derive(self, sequence: Sequence) -> Grouped:
        """From `segments`; without documents a row is one group."""
        sequence = sequence if sequence.spans is None else sequence.spans.whole
        B, T = sequence.batch, sequence.length
        group = documents_of(sequence)
        real = None if sequence.real is None else sequence.real.flatten()
        counts = torch.ones_like(group) if real is None else real.long()
        size = counts.new_zeros(B * (T + 1)).scatter_add_(0, group, counts)[group]
        return Grouped(group, size, real)


def documents_of(sequence: Sequence) -> Tensor:
    """(N,) long: a number for each document of each row, below B (T + 1); without documents, for each row."""
    B, T = sequence.batch, sequence.length
    rows = torch.arange(B, device=sequence.tokens.device)[:, None] * (T + 1)
    return (rows.expand(B, T) if sequence.segments is None else rows + sequence.segments).flatten()


class LimitedRouter(ScoredRouter):
    """In training, an expert takes at most `ceil(n / E * capacity_factor)` of the n tokens of a document of a row.

    In evaluation it takes all, so that no output depends on how many tokens are given at once.

    Parameters
    ----------
    capacity_factor : 1 is room for as many as there are when all experts get equally many.
    jitter : in training, the router's input is multiplied by numbers uniform in [1 - jitter, 1 + jitter].
    """

    capabilities = replace(BY_TOKEN, lost_in_training=frozenset({"state"}))

    def __init__(self, context: LayerContext, *, capacity_factor: float, jitter: float = 0.0):
        super().__init__(context, jitter=jitter)
        self.capacity_factor = Fraction(capacity_factor).limit_denominator(1_000_000)
        if self.capacity_factor <= 0:
            raise ValueError(
                f"capacity_factor is {capacity_factor}, n_experts {self.n_experts}; an expert would have room for less "
                "than one token: capacity_factor must be positive"
            )

    def needs(self) -> tuple[Need, ...]:
        """Which tokens share an expert's room."""
        return (TokenGroups(),)

    def with_room(self, wanted: Tensor, sequence: Sequence) -> Tensor:
        """(N, k) choices -> the same, E for those that find no room; in training mode only."""
        if not self.training:
            return wanted
        grouped = sequence[TokenGroups()]
        return chosen_of_all(
            wanted, sequence, lambda all_, _: within_capacity(all_, grouped, self.n_experts, self.capacity_factor)
        )


def within_capacity(wanted: Tensor, grouped: Grouped, n_experts: int, factor: Fraction) -> Tensor:
    """(N, k) choices -> the same, E for those that find no room.

    All first choices of a group come before all second ones, and among these earlier tokens before later ones. Choices
    of padding, and those that are E already, take no room.
    """
    N, k = wanted.shape
    seated = wanted if grouped.real is None else torch.where(grouped.real[:, None], wanted, n_experts)
    seats = (grouped.group[:, None] * (n_experts + 1) + seated).T.flatten()
    before = rank_among_equals(seats).view(k, N).T
    capacity = -(-grouped.size * factor.numerator // (n_experts * factor.denominator))
    return torch.where(before < capacity[:, None], wanted, n_experts)


def rank_among_equals(keys: Tensor) -> Tensor:
    """(M,) -> (M,) long: how many earlier elements are equal to each."""
    order = keys.argsort(stable=True)
    run = keys[order]
    rank = torch.arange(len(keys), device=keys.device) - torch.searchsorted(run, run)
    return torch.empty_like(rank).scatter_(0, order, rank)
