"""The delta rule with a removal of its own: what is taken away and what is written lie under keys of their own.

All forms compute, for each head with keys of width N, values of width P and a state (P, N):

    S_t = S_(t-1) (diag(w_t) + a_t b_t^T) + v_t k_t^T        y_t = S_t r_t

(Peng et al., 2025, arXiv:2503.14456). What is found under a_t, before the state decays, is written under b_t. Padding
is a token with b = k = 0 and no decay.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff_linear.chunks import Seen, by_chunks, chunk_length, from_chunks, seen
from bakeoff_linear.correction import Corrected
from bakeoff_linear.decays import Decayed, decayed_by_channel
from bakeoff_linear.mild_decays import MILD, decayed_mildly


def generalised_delta_rule(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_w: Tensor,
    *,
    chunk: int = 32,
    bound: float = -math.inf,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` of `v` (B, T, H, P) and the others (B, T, H, N), by chunks of at most `chunk` tokens.

    `log_w` is at most 0 and nowhere less than `bound`; one that is known to be mild saves work. `state` (B, H, P, N)
    precedes the tokens; None: there is nothing before, and no state is returned. `segments` (B, T) counts the documents
    that began in the call: the state of one does not reach the next. `chunk` is a power of two.
    """
    B, T, H = v.shape[:3]
    if not T:
        return torch.zeros_like(v), state
    if segments is not None:  # a first token finds nothing
        a = a * (segments == F.pad(segments[:, :-1], (1, 0)))[:, :, None, None].to(a.dtype)
    Q = chunk_length(T, chunk)
    r, k, value, a, b, log_w = (by_chunks(t, Q) for t in (r, k, v, a, b, log_w))
    given = (r, -a, b, k, log_w, seen(segments, Q, r))
    pairs, (G, R), (Wb, Wk), keep = decayed_mildly(*given) if bound * Q >= MILD else _decayed(*given)
    (read_b, read_k), (M, find_k) = pairs
    given = (M, read_b, -(find_k @ value), R, G, Wb, keep, value.mT @ Wk)
    y, after = Corrected.apply(*(t.flatten(1, 2) for t in given), None if state is None else state.flatten(0, 1))
    y = y.unflatten(1, (B, H)) + read_k @ value
    return from_chunks(y, v.shape), None if after is None else after.unflatten(0, (B, H))


def _decayed(r: Tensor, a: Tensor, b: Tensor, k: Tensor, log_w: Tensor, seen: Seen) -> Decayed:
    """Pairs by rows r, which see up to their token, and a, which see up to the one before; columns are b and k."""
    ahead = F.pad(a[..., 1:, :], (0, 0, 0, 1))  # as rows of the token before
    (pairs_r, pairs_a), (read, found), writes, keep = decayed_by_channel([r, ahead], [b, k], log_w, seen)
    found = torch.cat([a[..., :1, :], found[..., :-1, :]], -2)
    return Decayed([pairs_r, [F.pad(m[..., :-1, :], (0, 0, 1, 0)) for m in pairs_a]], [read, found], writes, keep)


def generalised_delta_rule_step(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_w: Tensor,
    *,
    state: Tensor,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `generalised_delta_rule` computes for one token: `r` (B, 1, H, N), and so on."""
    r, k, v, a, b, log_w = (t[:, 0] for t in (r, k, v, a, b, log_w))  # (B, H, N)
    held = state if segments is None else state * (segments == 0)[:, :, None, None].to(state.dtype)
    found = held @ a[..., None]
    after = held * log_w.exp()[:, :, None] + found * b[:, :, None] + v[..., None] * k[:, :, None]
    return (after @ r[..., None])[..., 0][:, None], after


def generalised_delta_rule_naive(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_w: Tensor,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The same, one token after the other; its products are those that the mixer's `flops` counts."""
    held = v.new_zeros(*v.shape[:1], *v.shape[2:], r.shape[-1]) if state is None else state
    segment, rows = torch.zeros(v.shape[0], dtype=torch.long, device=v.device), []
    for t in range(v.shape[1]):
        if segments is not None:
            held = torch.where((segments[:, t] == segment)[:, None, None, None], held, 0)
            segment = segments[:, t]
        found = held @ a[:, t, :, :, None]
        held = held * log_w[:, t].exp()[:, :, None] + found @ b[:, t, :, None] + v[:, t, ..., None] @ k[:, t, :, None]
        rows.append((held @ r[:, t, :, :, None])[..., 0])
    return torch.stack(rows, 1), None if state is None else held
