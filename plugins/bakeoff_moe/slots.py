"""Soft routing: experts read mixtures of tokens."""

from __future__ import annotations

import itertools

import torch
from bakeoff.interfaces import Sequence, Slots
from torch import Tensor

from bakeoff_moe.experts import Experts
from bakeoff_moe.grouped_product import Groups


def soft_mixture(x: Tensor, slots: Slots, experts: Experts, sequence: Sequence) -> Tensor:
    """(B, T, D) -> (B, T, D): `y = C E(D x)`, every expert on its own slots."""
    B, E, S, _ = slots.dispatch.shape
    inputs = torch.einsum("best,btd->ebsd", slots.dispatch.to(x.dtype), x)
    ends = torch.arange(1, E + 1, device=x.device, dtype=torch.int32) * (B * S)
    counts = [B * S] * E if experts.counted(x) else None
    outputs = experts(inputs.flatten(0, 2), Groups(ends, counts), sequence)
    return torch.einsum("btes,ebsd->btd", slots.combine.to(x.dtype), outputs.view(E, B, S, x.shape[2]))


def soft_mixture_naive(x: Tensor, slots: Slots, experts: Experts, sequence: Sequence) -> Tensor:
    """The same, slot by slot."""
    B, E, S, _ = slots.dispatch.shape
    dispatch, combine = slots.dispatch.to(x.dtype), slots.combine.to(x.dtype)
    y = [torch.zeros_like(row) for row in x]
    for b, e, s in itertools.product(range(B), range(E), range(S)):
        output = experts.alone(e, dispatch[b, e, s][None] @ x[b], sequence)
        y[b] = y[b] + combine[b, :, e, s][:, None] @ output
    return torch.stack(y)
