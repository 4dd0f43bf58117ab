"""Gated DeltaNet: the delta rule with one decay a head."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.interfaces import Cut, LayerContext, Reference, init
from bakeoff.parts.kernels import Backend
from bakeoff.parts.linear import Linear, columns
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_linear.delta_mixer import DeltaMixer, decay_rates
from bakeoff_linear.gated_norm import GatedNorm


class GatedDeltaNet(DeltaMixer):
    """The delta rule with a state that decays, by one number per head and token.

    With queries q, keys k and values v by projection, short causal convolution and SiLU, q and k of unit length, and
    with projections b, dt and z of the input:

        a_t = exp(-exp(A_log) softplus(dt_t + dt_bias))        beta_t = sigmoid(b_t)
        S_t = a_t S_(t-1) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T
        out_t = W (w * rmsnorm(S_t q_t / sqrt(N)) * silu(z_t))

    Parameters
    ----------
    n_heads : H, heads of values, each with a decay and a state (P, N).
    n_key_heads : heads of queries and keys, a divisor of H (null: H); each serves H / n_key_heads heads of values.
    key_width : N (null: three quarters of D / n_key_heads).
    value_width : P (null: 2 N).
    conv_width : taps of the short convolutions, the token itself included.
    negative_eigenvalues : beta is twice as large, so that a write can turn what it finds around.
    chunk : tokens that are computed at once in matrix products, a power of two.
    dt_min, dt_max : softplus(dt_bias) starts log-uniform between them.
    A_min, A_max : exp(A_log) starts uniform between them.
    eps : added to the mean square in the norm.
    backend : plain torch, or the kernels of flash-linear-attention on a GPU.
    """

    reference = Reference(
        "Yang, Kautz and Hatamizadeh",
        2024,
        "Gated Delta Networks: Improving Mamba2 with Delta Rule",
        "https://arxiv.org/abs/2412.06464",
    )
    keep_float32 = ("A_log", "dt_bias")

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        n_key_heads: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        conv_width: int = 4,
        negative_eigenvalues: bool = False,
        chunk: int = 32,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        A_min: float = 0.01,
        A_max: float = 16.0,
        eps: float = 1e-5,
        backend: Backend = "auto",
    ):
        if not (0 < dt_min <= dt_max and 0 < A_min <= A_max):
            raise ValueError(f"dt from {dt_min} to {dt_max} and A from {A_min} to {A_max} are not positive ranges")
        key_heads = n_heads if n_key_heads is None else n_key_heads
        if key_width is None:
            key_width = _three_quarters(context.d_model, key_heads)
        super().__init__(
            context,
            part="gated_delta_net",
            n_heads=n_heads,
            n_key_heads=key_heads,
            key_width=key_width,
            value_width=2 * key_width if value_width is None else value_width,
            conv_width=conv_width,
            negative_eigenvalues=negative_eigenvalues,
            chunk=chunk,
            backend=backend,
        )
        self.dt_range, self.A_range = (dt_min, dt_max), (A_min, A_max)
        self.decay = Linear(context.d_model, n_heads, role="gate")
        self.gate = Linear(context.d_model, n_heads * self.value_width, role="gate")
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.dt_bias = nn.Parameter(torch.empty(n_heads))
        self.norm = GatedNorm(context.child(d_model=self.value_width), eps=eps)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As many heads of keys as of values, and fewer; a chunk that several documents share."""
        shared = {"n_key_heads": 2, "key_width": 4, "value_width": 5, "negative_eigenvalues": True, "chunk": 4}
        return [{"n_heads": 4, "chunk": 16}, {"n_heads": 4, **shared}]

    def reset_parameters(self) -> None:
        """Decay rates and step sizes as published."""
        init.fill(self.A_log, decay_rates(*self.A_range))
        init.fill(self.dt_bias, init.step_sizes(*self.dt_range))

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads of keys, and the heads of values that read them."""
        plan = super().parallel_plan(ranks) | columns(self, "decay", unit=self.group)
        plan |= columns(self, "gate", unit=self.group * self.value_width)
        return plan | {"A_log": Cut(0, self.group), "dt_bias": Cut(0, self.group)}

    def _log_decay(self, x: Tensor, wide: torch.dtype) -> Tensor:
        return -self.A_log.to(wide).exp() * F.softplus(self.decay(x).to(wide) + self.dt_bias.to(wide))

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        return self.norm(y, self.gate(x).unflatten(2, (self.n_heads, self.value_width))).flatten(2)

    def _products(self) -> tuple[Linear | None, ...]:
        return *super()._products(), self.decay, self.gate


def _three_quarters(d_model: int, heads: int) -> int:
    if heads < 1 or 3 * d_model % (4 * heads):
        raise ValueError(f"three quarters of d_model {d_model} are no multiple of {heads} key heads; give key_width")
    return 3 * d_model // (4 * heads)
