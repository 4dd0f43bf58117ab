"""The delta rule, gated or not: a state in which a key overwrites instead of adding.

All forms compute, for each head with keys of width N, values of width P and a state (P, N):

    S_t = S_(t-1) A_t (I - b_t k_t k_t^T) + b_t v_t k_t^T        y_t = S_t q_t

where A_t is 1 (DeltaNet), one number a head (Gated DeltaNet) or diagonal, one number a key channel (Kimi Delta
Attention). The state decays first; what is then found under the key is what the value replaces: with unit keys and
b = 1, S_t k_t = v_t. Padding is a token with b = 0 and no decay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bakeoff_linear.chunks import by_chunks, chunk_length, from_chunks, seen
from bakeoff_linear.correction import Corrected
from bakeoff_linear.decays import decayed_by_channel, decayed_by_head


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_a: Tensor | None = None,
    *,
    chunk: int = 32,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` of `q`, `k` (B, T, G, N), `v` (B, T, H, P) and `beta` (B, T, H), by chunks of at most `chunk`.

    `log_a`, at most 0, is (B, T, H), (B, T, H, N) or None for no decay. Value head h reads key head h // (H / G).
    `state` (B, H, P, N) precedes the tokens; None: there is nothing before, and no state is returned. `segments`
    (B, T) counts the documents that began in the call: the state of one does not reach the next. `chunk` is a power
    of two.
    """
    B, T, H = v.shape[:3]
    if not T:
        return torch.zeros_like(v), state
    Q = chunk_length(T, chunk)
    q, k, value = by_chunks(q, Q, H), by_chunks(k, Q, H), by_chunks(v, Q)
    b, log = by_chunks(beta, Q)[..., None], None if log_a is None else by_chunks(log_a, Q)
    decayed = decayed_by_channel if log is not None and log.ndim == 5 else decayed_by_head
    ((C,), (M,)), (G, R), (W,), keep = decayed([q, k * b], [k], log, seen(segments, Q, q))
    given = (t.flatten(1, 2) for t in (M, C, value * b, R, G, W, keep))
    y, after = Corrected.apply(*given, None, None if state is None else state.flatten(0, 1))
    return from_chunks(y.unflatten(1, (B, H)), v.shape), None if after is None else after.unflatten(0, (B, H))


def delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_a: Tensor | None = None,
    *,
    state: Tensor,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `delta_rule` computes for one token: `q` (B, 1, G, N), and so on."""
    B, _, H, P = v.shape
    q, k = (_for_each_value_head(t, H).reshape(B * H, -1, 1) for t in (q, k))
    held = state if segments is None else state * (segments == 0)[:, :, None, None].to(state.dtype)
    if log_a is not None:
        held = held * log_a.exp().reshape(B, H, 1, -1)
    held = held.flatten(0, 1)
    error = torch.baddbmm(v.reshape(B * H, P, 1), held, k, alpha=-1)
    after = torch.baddbmm(held, error * beta.reshape(B * H, 1, 1), k.mT)
    return torch.bmm(after, q).view(B, 1, H, P), after.view(B, H, P, -1)


def delta_rule_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_a: Tensor | None = None,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What `delta_rule` computes, one token after the other; its products are those that the mixers' `flops` count."""
    B, T, H, P = v.shape
    q, k = (_for_each_value_head(t, H) for t in (q, k))
    held = v.new_zeros(B, H, P, k.shape[-1]) if state is None else state
    segment, rows = torch.zeros(B, dtype=torch.long, device=v.device), []
    for t in range(T):
        if segments is not None:
            held = torch.where((segments[:, t] == segment)[:, None, None, None], held, 0)
            segment = segments[:, t]
        if log_a is not None:
            a = log_a[:, t].exp()
            held = held * (a[..., None, None] if a.ndim == 2 else a[..., None, :])
        error = v[:, t] - (held @ k[:, t, :, :, None])[..., 0]
        held = held + (beta[:, t, :, None] * error)[..., None] @ k[:, t, :, None]
        rows.append((held @ q[:, t, :, :, None])[..., 0])
    return torch.stack(rows, 1), None if state is None else held


def _for_each_value_head(t: Tensor, heads: int) -> Tensor:
    """(..., G, N) -> (..., H, N)."""
    return t if t.shape[-2] == heads else t.repeat_interleave(heads // t.shape[-2], -2)
