"""Linear recurrences whose state is a matrix that decays by one number a head: by chunks, and token by token.

All forms compute, for each head with values of width P, keys of width N and a state (P, N):

    S_t = exp(log_a_t) S_(t-1) + v_t k_t^T        y_t = S_t q_t

Without decay this is linear attention (Katharopoulos et al., 2020, arXiv:2006.16236), with a constant one retention
(Sun et al., 2023, arXiv:2307.08621), with one for each token state-space duality (Dao and Gu, 2024, arXiv:2405.21060).
A token with log_a = 0 and v = 0 or k = 0 leaves the state as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff.interfaces.spans import Spans
from bakeoff.parts.scans.scalar_decay_chunks import Chunked, FeatureMap


def scalar_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    *,
    write: Tensor | None = None,
    skip: Tensor | None = None,
    feature_map: FeatureMap | None = None,
    chunk: int = 64,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` of `q` and `k` (B, T, G, N) and `v` (B, T, H, P), by chunks; y is (B, T, H, P).

    H is a multiple of G: H / G heads share queries and keys. `log_a` <= 0 is (B, T, H), or (H,) for all tokens; None:
    nothing decays. `state` (B, H, P, N) precedes the call; None: there is nothing before, and no state is returned.
    `segments` (B, T) counts the documents that began in it: the state of one does not reach the next.

    With `write` (B, T, H) and `skip` (H,), `write_t v_t` is written instead of v_t, and y_t is `S_t q_t + skip v_t`.
    With `feature_map`, its features of queries and keys take their place; they are formed for what passes from chunk to
    chunk only. Chunks have `chunk` tokens at most.

    `spans`: who has which tokens, where ranks share them out; there is no state, and they know their segments.
    """
    assert (write is None) == (skip is None), "write and skip come together"
    given = (q, k, v, log_a, write)
    if spans is None:
        return _scanned(given, skip, feature_map, chunk, state, segments, None)
    if log_a is not None and log_a.ndim == 1:
        given = (q, k, v, log_a.expand(v.shape[:3]), write)
    rows = tuple(None if t is None else _stacked(spans.split(t)) for t in given)
    begun = [own.segments for own in spans.sequences]
    segments = None if begun[0] is None else _stacked([each for each in begun if each is not None], mode="replicate")
    y, _ = _scanned(rows, skip, feature_map, chunk, None, segments, spans)
    pieces = zip(y.split(len(v)), spans.sizes(spans.rank), strict=True)
    return torch.cat([piece[:, :size] for piece, size in pieces], 1), None


def _scanned(
    given: tuple[Any, ...],
    skip: Tensor | None,
    feature_map: FeatureMap | None,
    chunk: int,
    state: Tensor | None,
    segments: Tensor | None,
    spans: Spans | None,
) -> tuple[Tensor, Tensor | None]:
    """See `scalar_decay`; with `spans`, the rows of this rank's spans are rows of the batch, one after the other."""
    q, k, v, log_a, write = given
    B, T, H = v.shape[:3]
    if T == 0:
        return v, state
    n = -(-T // chunk)
    Q = -(-T // n)  # the chunks share what is missing to a whole number
    if log_a is not None and log_a.ndim == 1:
        log_a = log_a.expand(B if log_a.requires_grad else 1, T, H)
    cut = [None if t is None else _cut(t, n, Q) for t in (v, write, log_a, k, q)]
    if segments is not None:
        segments = _cut(segments, n, Q, mode="replicate")
    alone = q.shape[2] == H > 1 and skip is None
    if alone:  # heads that share nothing are rows of the batch, whose tokens then lie side by side
        cut = [None if t is None else _fold(t.expand(B, *t.shape[1:]), H) for t in cut]
        segments = None if segments is None else segments.repeat_interleave(H, 0)
        state = None if state is None else state.flatten(0, 1)[:, None]
    y, after = Chunked.apply(*cut, skip, state, segments, feature_map, spans)
    if alone:
        y = y.view(B, H, n, Q, -1).permute(0, 2, 3, 1, 4)
        after = None if after is None else after.view(B, H, *after.shape[2:])
    return y.flatten(1, 2)[:, :T], after


def _stacked(spans: list[Tensor], mode: str = "constant") -> Tensor:
    """(B, T, ...) each -> (spans B, most tokens, ...), the shorter ones filled up."""
    most = max(t.shape[1] for t in spans)
    return torch.cat([_filled(t, most, mode) for t in spans]) if len(spans) > 1 else spans[0]


def _cut(t: Tensor, n: int, Q: int, mode: str = "constant") -> Tensor:
    """(B, T, ...) -> (B, n, Q, ...), filled up."""
    return _filled(t, n * Q, mode).unflatten(1, (n, Q))


def _filled(t: Tensor, length: int, mode: str) -> Tensor:
    """(B, T, ...) -> (B, length, ...), filled up with zeros, or by the last token where `mode` is "replicate"."""
    missing = length - t.shape[1]
    if missing and mode == "replicate":
        return torch.cat([t, t[:, -1:].expand(-1, missing)], 1)
    return F.pad(t, (0, 0) * (t.ndim - 2) + (0, missing)) if missing else t


def _fold(t: Tensor, heads: int) -> Tensor:
    """(B, n, Q, H, ...) -> (B H, n, Q, 1, ...)."""
    return t.movedim(3, 1).flatten(0, 1).unsqueeze(3)


def scalar_decay_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    *,
    state: Tensor,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `scalar_decay` computes for one token, T = 1, without `write`, `skip` and `feature_map`."""
    groups = (k.shape[2], -1)
    keep = None if log_a is None else log_a.exp().expand(v.shape[:3])
    if segments is not None:
        here = (segments == 0)[:, :, None].to(state.dtype)
        keep = here if keep is None else keep * here
    held = state if keep is None else state * keep[:, 0, :, None, None]
    held = held.unflatten(1, groups)  # (B, G, R, P, N)
    held = torch.addcmul(held, v[:, 0].unflatten(1, groups)[..., None], k[:, 0, :, None, None])
    y = held.flatten(2, 3) @ q[:, 0, :, :, None]
    return y.view_as(v), held.flatten(1, 2)


def scalar_decay_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The same for any T, one token after the other: 4 P N multiply-adds and adds a head and token."""
    B, T, H, P = v.shape
    q, k = (t.repeat_interleave(H // t.shape[2], 2) for t in (q, k))
    log_a = v.new_zeros(()) if log_a is None else log_a
    keep = log_a.exp().expand(B, T, H)
    held = v.new_zeros(B, H, P, k.shape[-1]) if state is None else state
    segment = torch.zeros_like(v[:, 0, 0, 0], dtype=torch.long)
    rows = []
    for t in range(T):
        if segments is not None:
            held = torch.where((segments[:, t] == segment)[:, None, None, None], held, 0)
            segment = segments[:, t]
        held = keep[:, t, :, None, None] * held + v[:, t, :, :, None] @ k[:, t, :, None]
        rows.append((held @ q[:, t, ..., None])[..., 0])
    return torch.stack(rows, 1), None if state is None else held
