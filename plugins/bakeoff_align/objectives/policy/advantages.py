"""How much better an answer, or a token of it, was than expected. Each fast form stands beside its naive twin."""

from __future__ import annotations

import torch
from torch import Tensor


def generalised_advantages(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> Tensor:
    """(B, T) -> (B, T): `A_t = sum_l (gamma lam)^l d_(t+l)` with `d_t = r_t + gamma V_(t+1) - V_t`.

    Schulman et al. 2016, arXiv:1506.02438. Each row has one run of True in `mask`; after it the value is 0. Outside of
    it the advantage is 0.
    """
    rewards, values = rewards * mask, values * mask
    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    deltas = rewards + gamma * after - values
    found, running = [], torch.zeros_like(deltas[:, 0])
    for t in reversed(range(deltas.shape[1])):
        running = deltas[:, t] + gamma * lam * running
        found.append(running)
    return torch.stack(found[::-1], 1) * mask


def naive_generalised_advantages(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> Tensor:
    """The same, by the sum."""
    found = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        places = mask[row].nonzero()[:, 0].tolist()
        r, v = rewards[row, places], [*values[row, places], 0.0]
        deltas = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(places))]
        for t, place in enumerate(places):
            found[row, place] = sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(places)))
    return found


def alike(rewards: Tensor) -> Tensor:
    """(n, G) -> (n,) bool: all rewards of a group are equal, so that it teaches nothing."""
    return rewards.amax(1) == rewards.amin(1)


def group_advantages(rewards: Tensor, *, standardise: bool) -> Tensor:
    """(n, G) -> (n, G): reward less the group's mean; divided by its deviation + 1e-4 (of G - 1) if `standardise`.

    Exactly 0 where all rewards of a group are equal.
    """
    over = rewards - rewards.mean(1, keepdim=True)
    if standardise:
        over = over / (rewards.std(1, keepdim=True) + 1e-4)
    return over.masked_fill(alike(rewards)[:, None], 0)


def leave_one_out(rewards: Tensor) -> Tensor:
    """(n, G) -> (n, G): reward less the mean of the others of its group.

    Exactly 0 where all rewards of a group are equal.
    """
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return (rewards - others).masked_fill(alike(rewards)[:, None], 0)


def naive_leave_one_out(rewards: Tensor) -> Tensor:
    """The same, one answer at a time."""
    G = rewards.shape[1]
    others = [rewards[:, [other for other in range(G) if other != own]].mean(1) for own in range(G)]
    return rewards - torch.stack(others, 1)


def whitened(values: Tensor, mask: Tensor, *, shift: bool = True) -> Tensor:
    """(B, T) -> (B, T): of variance 1 (n - 1, plus 1e-8) over all tokens of `mask`; of mean 0, or as before.

    `shift` : take the mean away. 0 outside of the mask; a single token has no variance.
    """
    count = mask.sum()
    mean = (values * mask).sum() / count.clamp(min=1)
    variance = ((values - mean).square() * mask).sum() / (count - 1).clamp(min=1)
    scaled = (values - mean) * (variance + 1e-8).rsqrt()
    return (scaled if shift else scaled + mean) * mask


def naive_whitened(values: Tensor, mask: Tensor, *, shift: bool = True) -> Tensor:
    """The same, of the tokens alone."""
    picked = values[mask]
    scaled = (picked - picked.mean()) / (picked.var() + 1e-8).sqrt()
    return torch.zeros_like(values).masked_scatter(mask, scaled if shift else scaled + picked.mean())
