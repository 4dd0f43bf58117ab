"""The scans of this package on the kernels of `fla`, with the signatures of the forms in torch.

`fla` lays a state out as (keys, values), and takes several documents as one row of all, with the places where each
begins, and a state before each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.scans.along import decayed_along
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.gla import chunk_gla
from fla.ops.kda import chunk_kda
from fla.ops.rwkv7 import chunk_rwkv7
from fla.ops.simple_gla import chunk_simple_gla
from torch import Tensor
from torch.nn import functional as F

from bakeoff_linear.feature_maps import FeatureMap
from bakeoff_linear.linear_attention_scan import normalised, written


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None = None,
    *,
    feature_map: FeatureMap,
    eps: float | None = 1e-6,
    chunk: int = 64,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`bakeoff_linear.linear_attention_scan.linear_attention`; the normaliser is a column of the values."""
    given = feature_map.features(q), feature_map.features(k), written(v, eps, real)
    y, after = _simple_gla(*given, state=state, segments=segments, spans=spans)
    return normalised(y, eps), after


def retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    *,
    chunk: int = 64,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`bakeoff.parts.scans.scalar_decay.scalar_decay` with one decay a head, or one a head and token."""
    return _simple_gla(q, k, v, log_a, state=state, segments=segments, spans=spans)


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    *,
    chunk: int = 32,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`bakeoff_linear.gla_scan.gla`."""
    return _scanned(chunk_gla, {"q": q, "k": k, "v": v, "g": log_a}, state, segments)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_a: Tensor | None = None,
    *,
    chunk: int = 64,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`bakeoff_linear.delta_rule.delta_rule`: no decay is one of nothing, since only its kernel takes float32."""
    by_channel = log_a is not None and log_a.ndim == 4
    given = {"q": q, "k": k, "v": v, "g": torch.zeros_like(beta) if log_a is None else log_a, "beta": beta}
    return _scanned(chunk_kda if by_channel else chunk_gated_delta_rule, given, state, segments)


def generalised_delta_rule(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_w: Tensor,
    *,
    chunk: int = 64,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`bakeoff_linear.generalised_delta_rule.generalised_delta_rule`."""
    given = {"r": r, "w": log_w, "k": k, "v": v, "a": a, "b": b}
    return _scanned(chunk_rwkv7, given, state, segments)


def _simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    *,
    state: Tensor | None,
    segments: Tensor | None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """No decay, one a head, or one a head and token."""
    if spans is not None:
        return decayed_along(_simple_gla, q, k, v, log_a, spans=spans), None
    given = {"q": q, "k": k, "v": v}
    if log_a is None or log_a.ndim == 3:
        return _scanned(chunk_simple_gla, given if log_a is None else given | {"g": log_a}, state, segments)
    return _scanned(partial(chunk_simple_gla, g_gamma=log_a), given, state, segments)


def _scanned(
    scan: Callable[..., Any], given: dict[str, Tensor], state: Tensor | None, segments: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """`(y, state)` of a scan of `fla` over tensors (B, T, ...), each document from the state that precedes it."""
    wanted = {"scale": 1.0, "output_final_state": state is not None}
    before = None if state is None else state.mT
    if segments is None:
        y, after = scan(**_contiguous(given), **wanted, initial_state=_whole(before))
        return y, None if state is None else after.mT
    B, T = segments.shape
    first = torch.ones_like(segments, dtype=torch.bool)  # the first token of a row, or of a document
    first[:, 1:] = segments[:, 1:] != segments[:, :-1]
    run = (first.flatten().cumsum(0) - 1).view(B, T)  # which document of all each token belongs to
    begins = first.flatten().nonzero()[:, 0]
    if before is not None:
        kept = before * (segments[:, 0] == 0)[:, None, None, None].to(before.dtype)
        before = before.new_zeros(len(begins), *before.shape[1:]).index_copy(0, run[:, 0], kept)
    flat = {name: t.flatten(0, 1)[None] for name, t in given.items()}
    wanted["cu_seqlens"] = F.pad(begins, (0, 1), value=B * T)
    y, after = scan(**_contiguous(flat), **wanted, initial_state=_whole(before))
    return y[0].unflatten(0, (B, T)), None if state is None else after[run[:, -1]].mT


def _contiguous(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.contiguous() for name, t in given.items()}


def _whole(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.contiguous()
