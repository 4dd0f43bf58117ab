"""Linear attention as a mixer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bakeoff.interfaces import LayerContext, PositionalEncoding, Reference, Sequence
from bakeoff.parts.kernels import Backend, choose
from torch import Tensor

from bakeoff_linear.feature_maps import FeatureMapName, feature_map_called
from bakeoff_linear.keyed_mixer import KeyedMixer, balanced_chunk, share
from bakeoff_linear.linear_attention_scan import linear_attention, linear_attention_naive, linear_attention_step


class LinearAttention(KeyedMixer):
    """Attention whose weights are products of features, so that a matrix holds all of the past.

        y_t = sum_(j <= t) w_tj v_j / (sum_(j <= t) w_tj + eps)        w_tj = phi(q_t) . phi(k_j)

    or the sum itself if not normalised. The state is `S_t = S_(t-1) + [v_t, 1] phi(k_t)^T`, whose last row is the
    normaliser.

    Parameters
    ----------
    n_heads : H.
    feature_map : phi: `elu_plus_one`; `relu`; `taylor`, whose weights are `1 + s + s^2 / 2` with
        `s = q . k / sqrt(feature_width)` (Based); `identity`.
    normalised : divide by the sum of weights.
    feature_width : channels of a head's queries and keys before phi (null: those of its values).
    head_width : channels of a head's values (null: D / H).
    position : an encoding that rotates queries and keys before phi; null for none.
    chunk : tokens that are computed as one block of masked attention, at most (null: where the work inside chunks
        balances the work on their states).
    eps : added to the sum of weights.
    bias : whether the projections have one.
    backend : plain torch, or kernels on a GPU.
    """

    reference = Reference(
        "Katharopoulos et al.",
        2020,
        "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
        "https://arxiv.org/abs/2006.16236",
    )
    step = staticmethod(linear_attention_step)
    recurrence = staticmethod(linear_attention_naive)

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        feature_map: FeatureMapName = "elu_plus_one",
        normalised: bool = True,
        feature_width: int | None = None,
        head_width: int | None = None,
        position: Callable[[LayerContext], PositionalEncoding] | None = None,
        chunk: int | None = None,
        eps: float = 1e-6,
        bias: bool = False,
        backend: Backend = "auto",
    ):
        P = share("d_model", context.d_model, n_heads) if head_width is None else head_width
        N = P if feature_width is None else feature_width
        if P < 1 or N < 1 or n_heads < 1:
            raise ValueError(f"n_heads is {n_heads}, head_width {P}, feature_width {N}; each must be at least 1")
        phi, rows = feature_map_called(feature_map, N), P + normalised
        if chunk is None:
            chunk = balanced_chunk(N, rows, phi.width)
        sizes: dict[str, Any] = {"n_heads": n_heads, "key_width": N, "value_width": P, "rows": rows}
        super().__init__(context, **sizes, columns=phi.width, chunk=chunk, position=position, bias=bias)
        self.options = {"feature_map": phi, "eps": eps if normalised else None}
        self.scan = choose(
            backend,
            part="linear_attention",
            torch=linear_attention,
            kernels="bakeoff_linear.kernels:linear_attention",
            package="fla",
        )

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Positive weights, normalised; those of Based; plain products with positions, not normalised."""
        return [
            {"n_heads": 4, "chunk": 8},
            {"n_heads": 2, "feature_map": "taylor", "feature_width": 3, "chunk": 5, "bias": True},
            {"n_heads": 2, "feature_map": "identity", "normalised": False, "position": {"use": "rope"}, "chunk": 16},
        ]

    def _given(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, sequence: Sequence) -> tuple[Any, ...]:
        return q, k, v, sequence.real
