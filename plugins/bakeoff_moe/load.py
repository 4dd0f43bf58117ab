"""How tokens spread over experts: sums of a call, and figures of a whole step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from bakeoff.interfaces import Routing
from torch import Tensor


def load_sums(routing: Routing, real: Tensor | None, n_experts: int) -> dict[str, Tensor]:
    """Sums over real tokens: choices (E,) that experts took, tokens, tokens that none took, choices lost to capacity,
    and the entropy of the probabilities in nats, where the router has them."""
    experts, taken = routing.experts, routing.experts < n_experts
    n = experts.new_full((), len(experts)) if real is None else real.sum()
    sums = {"choices": counted(experts, n_experts, real), "tokens": n}
    sums["unrouted"] = over_real(~taken.any(-1), real)
    lost = (routing.chosen < n_experts) & ~taken
    sums["lost"] = over_real(lost.sum(-1), real)
    if routing.probabilities is not None:
        sums["entropy"] = over_real(torch.special.entr(routing.probabilities.detach()).sum(-1), real)
    return {name: value.float() for name, value in sums.items()}


def finished(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a whole step: `load` (E,), each expert's share of all choices taken; `max_violation`, by how much the largest
    load exceeds the mean, relative to it; `entropy`, mean of the probabilities', in nats; `dropped`, the share of
    choices lost to capacity; `unrouted`, the share of tokens that no expert took."""
    choices, tokens = sums["choices"], sums["tokens"].clamp_min(1)
    taken = choices.sum()
    load = choices / taken.clamp_min(1)
    found = {
        "load": load,
        "max_violation": torch.where(taken > 0, load.max() * len(load) - 1, 0.0),
        "dropped": sums["lost"] / (taken + sums["lost"]).clamp_min(1),
        "unrouted": sums["unrouted"] / tokens,
    }
    return found | ({"entropy": sums["entropy"] / tokens} if "entropy" in sums else {})


def counted(experts: Tensor, n_experts: int, real: Tensor | None) -> Tensor:
    """(N, k) choices -> (E,), how many of real tokens fell on each expert."""
    kept = experts if real is None else torch.where(real[:, None], experts, n_experts)
    flat = kept.flatten()
    return flat.new_zeros(n_experts + 1).scatter_add_(0, flat, torch.ones_like(flat))[:n_experts]


def over_real(values: Tensor, real: Tensor | None) -> Tensor:
    """Sum of (N, ...) values over real tokens."""
    if real is not None:
        values = values.masked_fill(~real.view(-1, *[1] * (values.ndim - 1)), 0)
    return values.sum(0)
