"""Kimi Delta Attention: the delta rule with one decay a key channel."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.interfaces import Cut, LayerContext, Reference, init
from bakeoff.parts.kernels import Backend
from bakeoff.parts.linear import Linear, columns
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_linear.delta_mixer import DeltaMixer, decay_rates, equal_widths
from bakeoff_linear.gated_norm import GatedNorm


class KDA(DeltaMixer):
    """The delta rule with a state that decays, by one number per key channel and token.

    With queries q, keys k and values v by projection, short causal convolution and SiLU, q and k of unit length, a
    projection b of the input, and dt and z by projections of rank N:

        a_t = exp(-exp(A_log) softplus(dt_t + dt_bias))        beta_t = sigmoid(b_t)
        S_t = S_(t-1) diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T
        out_t = W (w * rmsnorm(S_t q_t / sqrt(N)) * sigmoid(z_t))

    Parameters
    ----------
    n_heads : H, each with a state (N, N) and one A_log.
    head_width : N (null: D / H).
    conv_width : taps of the short convolutions, the token itself included.
    negative_eigenvalues : beta is twice as large, so that a write can turn what it finds around.
    chunk : tokens that are computed at once in matrix products, a power of two.
    dt_min, dt_max : softplus(dt_bias) starts log-uniform between them.
    A_min, A_max : exp(A_log) starts uniform between them.
    eps : added to the mean square in the norm.
    backend : plain torch, or the kernels of flash-linear-attention on a GPU.
    """

    reference = Reference(
        "Kimi Team",
        2025,
        "Kimi Linear: An Expressive, Efficient Attention Architecture",
        "https://arxiv.org/abs/2510.26692",
    )
    keep_float32 = ("A_log", "dt_bias")

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        head_width: int | None = None,
        conv_width: int = 4,
        negative_eigenvalues: bool = False,
        chunk: int = 32,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        A_min: float = 1.0,
        A_max: float = 16.0,
        eps: float = 1e-5,
        backend: Backend = "auto",
    ):
        if not (0 < dt_min <= dt_max and 0 < A_min <= A_max):
            raise ValueError(f"dt from {dt_min} to {dt_max} and A from {A_min} to {A_max} are not positive ranges")
        width = equal_widths(context.d_model, n_heads) if head_width is None else head_width
        super().__init__(
            context,
            part="kda",
            n_heads=n_heads,
            n_key_heads=n_heads,
            key_width=width,
            value_width=width,
            conv_width=conv_width,
            negative_eigenvalues=negative_eigenvalues,
            chunk=chunk,
            backend=backend,
        )
        self.dt_range, self.A_range = (dt_min, dt_max), (A_min, A_max)
        d, inner = context.d_model, n_heads * width
        self.decay_down = Linear(d, width, role="gate")
        self.decay_up = Linear(width, inner, role="gate")
        self.gate_down = Linear(d, width, role="gate")
        self.gate_up = Linear(width, inner, role="gate")
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.dt_bias = nn.Parameter(torch.empty(inner))
        self.norm = GatedNorm(context.child(d_model=width), gate="sigmoid", eps=eps)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Several chunks, and chunks that several documents share."""
        return [{"n_heads": 4, "chunk": 4}, {"n_heads": 8, "head_width": 3, "chunk": 32, "negative_eigenvalues": True}]

    def reset_parameters(self) -> None:
        """Decay rates and step sizes as published."""
        init.fill(self.A_log, decay_rates(*self.A_range))
        init.fill(self.dt_bias, init.step_sizes(*self.dt_range))

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads, and all of what their decays and gates come from."""
        N = self.key_width
        plan = super().parallel_plan(ranks) | columns(self, "decay_up", "gate_up", unit=N)
        return plan | {"A_log": Cut(0), "dt_bias": Cut(0, N)}

    def _log_decay(self, x: Tensor, wide: torch.dtype) -> Tensor:
        dt = F.softplus(self.decay_up(self.decay_down(x)).to(wide) + self.dt_bias.to(wide))
        return -self.A_log.to(wide).exp()[:, None] * dt.unflatten(2, (self.n_heads, self.key_width))

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        gate = self.gate_up(self.gate_down(x)).unflatten(2, (self.n_heads, self.value_width))
        return self.norm(y, gate).flatten(2)

    def _products(self) -> tuple[Linear | None, ...]:
        return *super()._products(), self.decay_down, self.decay_up, self.gate_down, self.gate_up
