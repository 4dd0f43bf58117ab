"""Linear attention by chunks and token by token: what keys have written, and the sum of its weights.

All forms compute, for each head with values of width P and a feature map phi:

    y_t = sum_(j <= t) w_tj v_j / (sum_(j <= t) w_tj + eps)        w_tj = phi(q_t) . phi(k_j)

or the sum itself, if not normalised. The state is `sum_j [v_j, 1] phi(k_j)^T`: the last of its P + 1 rows is the
normaliser (Katharopoulos et al., 2020, arXiv:2006.16236).
"""

from __future__ import annotations

from bakeoff.interfaces.spans import Spans
from bakeoff.parts.scans.scalar_decay import scalar_decay, scalar_decay_naive, scalar_decay_step
from torch import Tensor
from torch.nn import functional as F

from bakeoff_linear.feature_maps import FeatureMap


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
    """`(y, state)` of `q` and `k` (B, T, H, d) and `v` (B, T, H, P), by chunks; y is (B, T, H, P).

    `real` (B, T) is False for padding, which writes nothing. `eps` is added to the normaliser; None: nothing is
    normalised. `state` (B, H, P + 1, features), or P where not normalised, precedes the call; None: there is nothing
    before, and no state is returned. `segments` (B, T) counts the documents that began in it: the state of one does
    not reach the next. `spans`: who has which tokens, where ranks share them out; there is no state, and its segments
    are those that count.
    """
    given, phi = (q, k), None
    if feature_map.of_products:
        phi = feature_map
    else:
        given = feature_map.features(q), feature_map.features(k)
    values = written(v, eps, real)
    options = {"feature_map": phi, "chunk": chunk, "state": state, "segments": segments, "spans": spans}
    y, after = scalar_decay(*given, values, **options)
    return normalised(y, eps), after


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None = None,
    *,
    feature_map: FeatureMap,
    eps: float | None = 1e-6,
    state: Tensor,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `linear_attention` computes for one token, T = 1."""
    phi = (feature_map.features(t) for t in (q, k))
    y, after = scalar_decay_step(*phi, written(v, eps, real), state=state, segments=segments)
    return normalised(y, eps), after


def linear_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None = None,
    *,
    feature_map: FeatureMap,
    eps: float | None = 1e-6,
    state: Tensor | None = None,
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What `linear_attention` computes, one token after the other."""
    phi = (feature_map.features(t) for t in (q, k))
    y, after = scalar_decay_naive(*phi, written(v, eps, real), state=state, segments=segments)
    return normalised(y, eps), after


def written(v: Tensor, eps: float | None, real: Tensor | None) -> Tensor:
    """Values, and a one beside them for the normaliser; zeros for padding."""
    if eps is not None:
        v = F.pad(v, (0, 1), value=1.0)
    return v if real is None else v * real[:, :, None, None].to(v.dtype)


def normalised(y: Tensor, eps: float | None) -> Tensor:
    """What was read of values, divided by what was read of the ones beside them."""
    return y if eps is None else y[..., :-1] / (y[..., -1:] + eps)
