"""The LSTM with a matrix memory (xLSTM) as a mixer."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from bakeoff.interfaces import Capabilities, Cut, LayerContext, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.interfaces.cut import check_heads
from bakeoff.parts.fused_loss import capped
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from torch import Tensor
from torch.nn import functional as F

from bakeoff_rnn.head_norm import HeadNorm
from bakeoff_rnn.matrix_memory import NEVER, MatrixMemory, matrix_memory, matrix_memory_naive, matrix_memory_step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class MLSTM(SequenceMixer):
    """A long short-term memory whose cell is a matrix, and whose input gate is an exponential.

    With queries, keys and values of the input, and for each head gates f = sigmoid(cap(w_f x + b_f)) to forget and
    i = exp(cap(w_i x + b_i)) to write, where cap(u) = c tanh(u / c):

        C_t = f_t C_(t-1) + i_t v_t k_t^T        n_t = f_t n_(t-1) + i_t k_t
        h_t = C_t q_t / max(|n_t . q_t|, 1)      out_t = W_o (sigmoid(W_g x_t) * norm(h_t))

    where q is divided by the root of its width, and `norm` is a layer norm of each head. C and n are kept times
    exp(-m), m being the largest logarithm of the weights that they hold. Several tokens are computed by chunks in
    matrix products, a single one by the recurrence. The layer of xLSTM 7B (Beck et al., 2025, arXiv:2503.13427).

    Parameters
    ----------
    n_heads : heads, each with a memory of its own.
    width : channels of the values, over all heads; null: `d_model`.
    key_width : channels of the queries and of the keys, over all heads; null: half of `width`.
    gate_soft_cap : c, what bounds the inputs of both gates; null: nothing does.
    input_bias : what b_i starts from; gates start from their biases alone.
    forget_min, forget_max : b_f starts evenly spaced between them, head by head.
    chunk : tokens that are computed as one block of masked attention, at most; null: the power of two at or below
        the root of a memory's size.
    eps : added to the divisor of h, and to the variance in the norm.
    """

    reference = Reference(
        "Beck et al.", 2024, "xLSTM: Extended Long Short-Term Memory", "https://arxiv.org/abs/2405.04517"
    )
    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        width: int | None = None,
        key_width: int | None = None,
        gate_soft_cap: float | None = 15.0,
        input_bias: float = -10.0,
        forget_min: float = 3.0,
        forget_max: float = 6.0,
        chunk: int | None = None,
        eps: float = 1e-6,
    ):
        super().__init__(context)
        d = context.d_model
        width = d if width is None else width
        key_width = width // 2 if key_width is None else key_width
        _check(n_heads, width, key_width, chunk, gate_soft_cap)
        self.n_heads, self.width, self.key_width = n_heads, width, key_width
        self.chunk = chunk or 2 ** int(math.log2(width * key_width) / 2 - math.log2(n_heads))
        self.gate_soft_cap, self.input_bias, self.forget_range = gate_soft_cap, input_bias, (forget_min, forget_max)
        self.eps = eps
        self.q = Linear(d, key_width)
        self.k = Linear(d, key_width)
        self.v = Linear(d, width)
        self.input_gate = Linear(d, n_heads, bias=True, role="gate")
        self.forget_gate = Linear(d, n_heads, bias=True, role="gate")
        self.output_gate = Linear(d, width, role="gate")
        self.norm = HeadNorm(context.child(d_model=width), eps=eps)
        self.output = Linear(width, d, role="output")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Narrow keys; and a chunk that several documents share, without a cap."""
        other = {"n_heads": 2, "width": 24, "key_width": 16, "chunk": 5, "gate_soft_cap": None, "input_bias": 0.0}
        return [{"n_heads": 4, "chunk": 16}, other]

    def reset_parameters(self) -> None:
        """Gates that do not depend on the input, as published."""
        init.fill(self.input_gate.weight, init.constant(0.0))
        init.fill(self.forget_gate.weight, init.constant(0.0))
        init.fill(self.input_gate.bias, init.constant(self.input_bias))
        init.fill(self.forget_gate.bias, lambda shape, _: torch.linspace(*self.forget_range, shape[0]))

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads."""
        check_heads(self.n_heads, ranks)
        keys, values = self.key_width // self.n_heads, self.width // self.n_heads
        plan = columns(self, "q", "k", unit=keys) | columns(self, "v", "output_gate", "norm", unit=values)
        return plan | columns(self, "input_gate", "forget_gate") | rows(self, "output", unit=values)

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank, and their channels."""
        P = ranks.size()
        self.n_heads, self.width, self.key_width = self.n_heads // P, self.width // P, self.key_width // P

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> MatrixMemory:
        """Zeros, in float32 or wider."""
        wide = torch.promote_types(dtype, torch.float32)
        H, P, N = self.n_heads, self.width // self.n_heads, self.key_width // self.n_heads
        held, m = (torch.zeros(batch, H, *shape, dtype=wide, device=device) for shape in ((P + 1, N), ()))
        return MatrixMemory(held, m)

    def forward(self, x: Tensor, sequence: Sequence, state: MatrixMemory | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        decoding = state is not None and sequence.length == 1
        by_chunks = partial(matrix_memory, chunk=self.chunk, spans=sequence.spans)
        return self._mix(x, sequence, state, matrix_memory_step if decoding else by_chunks)

    def naive(self, x: Tensor, sequence: Sequence, state: MatrixMemory | None = None) -> Result:
        """The same by the recurrence, one token after the other."""
        return self._mix(x, sequence, state, matrix_memory_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: MatrixMemory | None, memory: Any) -> Result:
        wide = torch.promote_types(x.dtype, torch.float32)
        given = (self.q(x), self.k(x), self.v(x), self.input_gate(x), self.forget_gate(x))
        with torch.autocast(x.device.type, enabled=False):
            q, k, v, i, f = (t.to(wide) for t in given)
            q, k, v = (t.unflatten(2, (self.n_heads, -1)) for t in (q * (self.key_width // self.n_heads) ** -0.5, k, v))
            i, f = capped(i, self.gate_soft_cap), F.logsigmoid(capped(f, self.gate_soft_cap))
            if sequence.real is not None:
                real = sequence.real[:, :, None]
                i, f = torch.where(real, i, NEVER), torch.where(real, f, 0)
            h, after = memory(q, k, v, i, f, eps=self.eps, state=state, segments=sequence.segments)
            y = self.norm(h).to(x.dtype)
        return Result(self.output(self.output_gate(x).sigmoid() * y), after)

    def flops(self, queries: int, keys: int) -> int:
        """Projections, and the recurrence's products: 2 P N per head each to write and read C, and 2 N to read n.

        The chunked form does about `chunk (N + P)` multiply-adds a head and token more, half of them masked, in
        exchange for matrix products; that, decays and gates are not counted.
        """
        products = (self.q, self.k, self.v, self.input_gate, self.forget_gate, self.output_gate, self.output)
        linear = sum(linear_flops(layer, queries) for layer in products)
        return linear + queries * self.key_width * (4 * self.width // self.n_heads + 2)


def _check(n_heads: int, width: int, key_width: int, chunk: int | None, cap: float | None) -> None:
    if n_heads < 1:
        raise ValueError(f"n_heads is {n_heads}; an mLSTM has at least 1 head")
    for name, size in (("width", width), ("key_width", key_width)):
        if size < 1 or size % n_heads:
            raise ValueError(f"{name} {size} is no multiple of n_heads {n_heads}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; a chunk has at least 1 token")
    if cap is not None and cap <= 0:
        raise ValueError(f"gate_soft_cap is {cap}; it must be positive, or null for none")
