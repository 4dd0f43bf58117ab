"""Gated linear attention as a mixer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bakeoff.interfaces import Cut, LayerContext, Reference, Sequence
from bakeoff.parts.kernels import Backend, choose
from bakeoff.parts.linear import Linear, columns
from bakeoff.parts.scans.along import decayed_along
from torch import Tensor
from torch.nn import functional as F

from bakeoff_linear.chunks import check_chunk
from bakeoff_linear.gated_norm import GatedNorm
from bakeoff_linear.gla_scan import gla, gla_naive, gla_step
from bakeoff_linear.keyed_mixer import KeyedMixer, share, zero_padding

if TYPE_CHECKING:
    from bakeoff.interfaces.spans import Spans


class GLA(KeyedMixer):
    """Linear attention that forgets, in each key channel, as much as the token says.

        a_t = sigmoid(W_2 W_1 x_t + b)^(1 / temperature)        S_t = S_(t-1) diag(a_t) + v_t k_t^T
        y_t = S_t q_t / sqrt(N)                                 out_t = W (w * rmsnorm(y_t) * silu(z_t))

    Parameters
    ----------
    n_heads : H.
    expand_keys, expand_values : channels of all keys, and of all values, over `d_model`.
    gate_rank : width between W_1 and W_2.
    temperature : what log decays are divided by, so that they start near 0.
    chunk : tokens that are computed at once, at most; a power of two.
    eps : added to the mean square in the norm of each head.
    backend : plain torch, or kernels on a GPU.
    """

    reference = Reference(
        "Yang et al.",
        2023,
        "Gated Linear Attention Transformers with Hardware-Efficient Training",
        "https://arxiv.org/abs/2312.06635",
    )
    step = staticmethod(gla_step)
    recurrence = staticmethod(gla_naive)

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        expand_keys: float = 0.5,
        expand_values: float = 1.0,
        gate_rank: int = 16,
        temperature: float = 16.0,
        chunk: int = 32,
        eps: float = 1e-5,
        backend: Backend = "auto",
    ):
        N = share("expand_keys x d_model", round(expand_keys * context.d_model), n_heads)
        P = share("expand_values x d_model", round(expand_values * context.d_model), n_heads)
        if gate_rank < 1 or temperature <= 0:
            raise ValueError(f"gate_rank is {gate_rank} and temperature {temperature}; both must be over 0")
        super().__init__(context, n_heads=n_heads, key_width=N, value_width=P, chunk=check_chunk(chunk))
        self.temperature = temperature
        self.decay_in = Linear(context.d_model, gate_rank, role="gate")
        self.decay_out = Linear(gate_rank, n_heads * N, bias=True, role="gate")
        self.gate = Linear(context.d_model, n_heads * P, role="gate")
        self.norm = GatedNorm(context.child(d_model=P), eps=eps)
        self.scan = choose(backend, part="gla", torch=gla, kernels="bakeoff_linear.kernels:gla", package="fla")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As published, and with forgetting that is strong."""
        return [{"n_heads": 4, "chunk": 8}, {"n_heads": 2, "expand_keys": 1.0, "temperature": 0.1, "gate_rank": 3}]

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads, and all of what their decays come from."""
        own = columns(self, "decay_out", unit=self.key_width) | columns(self, "gate", unit=self.value_width)
        return super().parallel_plan(ranks) | own

    def _given(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, sequence: Sequence) -> tuple[Any, ...]:
        decay = self.decay_out(self.decay_in(x)).to(q.dtype)
        log_a = F.logsigmoid(decay).unflatten(2, (self.n_heads, self.key_width)) / self.temperature
        return q / math.sqrt(self.key_width), zero_padding(k, sequence), v, zero_padding(log_a, sequence)

    def _along(self, scan: Callable[..., Any], given: tuple[Any, ...], spans: Spans) -> Tensor:
        return decayed_along(scan, *given, spans=spans)

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        return self.norm(y, self.gate(x).unflatten(2, (self.n_heads, self.value_width))).flatten(2)

    def _products(self) -> tuple[Linear, ...]:
        return *super()._products(), self.decay_in, self.decay_out, self.gate
