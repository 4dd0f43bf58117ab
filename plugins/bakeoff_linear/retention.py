"""Retention, the mixer of RetNet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from bakeoff.interfaces import Cut, LayerContext, PositionalEncoding, Reference, Sequence
from bakeoff.parts.kernels import Backend, choose
from bakeoff.parts.linear import Linear, columns
from bakeoff.parts.norms import rms_norm
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.scans.scalar_decay import scalar_decay, scalar_decay_naive, scalar_decay_step
from torch import Tensor
from torch.nn import functional as F

from bakeoff_linear.keyed_mixer import KeyedMixer, balanced_chunk, share, zero_padding

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Retention(KeyedMixer):
    """Linear attention that forgets at a rate of its own in each head, fixed from the start.

        S_t = g_h S_(t-1) + v_t k_t^T        g_h = 1 - 2^(-5 - h), h = 0, 1, ...
        y_t = S_t q_t / sqrt(N)              out_t = W (silu(z_t) * norm(y_t))

    with queries and keys rotated by the position, and each head's output divided by its root mean square (the paper's
    group norm, as its authors' code has it: nothing is learned there, and the scale of q and k is of no consequence).

    Parameters
    ----------
    n_heads : H.
    expand : channels of all values over `d_model`; queries and keys have `d_model`.
    position : an encoding that rotates queries and keys; null for none.
    chunk : tokens that are computed as one block of masked attention, at most (null: where the work inside chunks
        balances the work on their states).
    eps : added to the mean square in the norm.
    bias : whether the projections have one.
    backend : plain torch, or kernels on a GPU.
    """

    reference = Reference(
        "Sun et al.",
        2023,
        "Retentive Network: A Successor to Transformer for Large Language Models",
        "https://arxiv.org/abs/2307.08621",
    )
    step = staticmethod(scalar_decay_step)
    recurrence = staticmethod(scalar_decay_naive)

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        expand: float = 2.0,
        position: Callable[[LayerContext], PositionalEncoding] | None = RoPE,
        chunk: int | None = None,
        eps: float = 1e-6,
        bias: bool = False,
        backend: Backend = "auto",
    ):
        N = share("d_model", context.d_model, n_heads)
        P = share("expand x d_model", round(expand * context.d_model), n_heads)
        chunk = balanced_chunk(N, P, N) if chunk is None else chunk
        super().__init__(
            context, n_heads=n_heads, key_width=N, value_width=P, chunk=chunk, position=position, bias=bias
        )
        self.gate = Linear(context.d_model, n_heads * P, bias=bias, role="gate")
        self.eps, self.heads = eps, range(n_heads)
        self.scan = choose(
            backend,
            part="retention",
            torch=scalar_decay,
            kernels="bakeoff_linear.kernels:retention",
            package="fla",
        )

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As published, and without positions."""
        return [{"n_heads": 4, "chunk": 8}, {"n_heads": 2, "expand": 1.0, "position": None, "bias": True, "chunk": 5}]

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads."""
        return {**super().parallel_plan(ranks), **columns(self, "gate", unit=self.value_width)}

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank, and note which they are."""
        super().narrow(ranks)
        first = ranks.get_local_rank() * self.n_heads
        self.heads = range(first, first + self.n_heads)

    def log_decays(self, like: Tensor) -> Tensor:
        """`log(1 - 2^(-5 - h))` of each head that is here, (H,)."""
        heads = torch.arange(self.heads.start, self.heads.stop, dtype=like.dtype, device=like.device)
        return torch.log1p(-torch.exp2(-5 - heads))

    def _given(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, sequence: Sequence) -> tuple[Any, ...]:
        log_a = self.log_decays(q)
        if sequence.real is not None:
            log_a = zero_padding(log_a.expand(*v.shape[:3]), sequence)
        return q, zero_padding(k / math.sqrt(self.key_width), sequence), v, log_a

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        normed = rms_norm(y, y.new_ones(self.value_width), self.eps).flatten(2)
        return (normed * F.silu(self.gate(x).to(y.dtype))).to(x.dtype)

    def _products(self) -> tuple[Linear, ...]:
        return *super()._products(), self.gate
