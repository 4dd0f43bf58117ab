"""The LSTM with exponential gates and scalar memories (xLSTM) as a mixer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from bakeoff.interfaces import Capabilities, Cut, LayerContext, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.interfaces.cut import check_heads
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_rnn.head_norm import HeadNorm
from bakeoff_rnn.scalar_memory import (
    NOTHING,
    ScalarMemory,
    scalar_memory,
    scalar_memory_naive,
    scalar_memory_step,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class SLSTM(SequenceMixer):
    """A long short-term memory whose input gate is an exponential, and whose cell is normalised.

        o, f = sigmoid(W x_t + R h_(t-1) + b)       i = exp(W x_t + R h_(t-1) + b)       z = tanh(W x_t + R h_(t-1) + b)
        c_t = f c_(t-1) + i z        n_t = f n_(t-1) + i        h_t = o c_t / n_t        out_t = norm(h_t)

    with weights of its own for each of o, z, i and f, which `input` and `recurrent` hold in this order, head by head. A
    head's gates see the h of this head alone; `norm` is a layer norm of each head. c and n are kept times exp(-m), m
    being the largest logarithm of the weights that they hold. It is a true loop over tokens, in training too: no token
    can be computed before the one before it. Where `width` is not `d_model`, a projection brings h back to `d_model`.

    Parameters
    ----------
    n_heads : heads.
    width : channels, over all heads; null: `d_model`.
    eps : added to the variance in the norm.
    """

    reference = Reference(
        "Beck et al.", 2024, "xLSTM: Extended Long Short-Term Memory", "https://arxiv.org/abs/2405.04517"
    )
    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True)

    def __init__(self, context: LayerContext, *, n_heads: int, width: int | None = None, eps: float = 1e-6):
        super().__init__(context)
        d = context.d_model
        width = d if width is None else width
        if n_heads < 1 or width < 1 or width % n_heads:
            raise ValueError(f"width {width} is no multiple of n_heads {n_heads}")
        self.n_heads, self.width = n_heads, width
        self.others = 0, 0  # channels of other ranks, before and after those of this one
        self.lateness = 0.0 if context.depth < 2 else context.layer / (context.depth - 1)
        self.input = Linear(d, 4 * width, bias=True)
        self.recurrent = nn.Parameter(torch.empty(n_heads, 4 * width // n_heads, width // n_heads))
        self.norm = HeadNorm(context.child(d_model=width), eps=eps)
        self.output = Linear(width, d, role="output") if width != d else None

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With and without the projection."""
        return [{"n_heads": 4}, {"n_heads": 2, "width": 12}]

    def reset_parameters(self) -> None:
        """As the authors start it: no recurrence, biases zero but for the forget gate's.

        They fall from 5 to -7 over the channels of a head, by a power that grows from 0.3 in the first layer to 1.6.
        """
        init.fill(self.recurrent, init.constant(0.0))
        N = self.width // self.n_heads
        forget = 5 - 12 * torch.linspace(0, 1, N) ** (0.3 + 1.3 * self.lateness)
        head = torch.cat([torch.zeros(3 * N), forget])
        init.fill(self.input.bias, lambda shape, _: head.repeat(shape[0] // len(head)))

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads, and all that their gates see."""
        check_heads(self.n_heads, ranks)
        N = self.width // self.n_heads
        plan = columns(self, "input", unit=4 * N) | columns(self, "norm", unit=N) | rows(self, "output", unit=N)
        return plan | {"recurrent": Cut(0)}

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank, and their channels; without a projection, those of others are zeros here."""
        P, rank = ranks.size(), ranks.get_local_rank()
        self.n_heads, self.width = self.n_heads // P, self.width // P
        self.others = rank * self.width, (P - 1 - rank) * self.width

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> ScalarMemory:
        """Nothing held, in float32 or wider."""
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch, self.n_heads, self.width // self.n_heads)
        h, c, n = (torch.zeros(shape, dtype=wide, device=device) for _ in range(3))
        return ScalarMemory(h, c, n, torch.full(shape, NOTHING, dtype=wide, device=device))

    def forward(self, x: Tensor, sequence: Sequence, state: ScalarMemory | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        return self._mix(x, sequence, state, scalar_memory_step if sequence.length == 1 else scalar_memory)

    def naive(self, x: Tensor, sequence: Sequence, state: ScalarMemory | None = None) -> Result:
        """The same in plain products, one token after the other."""
        return self._mix(x, sequence, state, scalar_memory_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: ScalarMemory | None, memory: Any) -> Result:
        wide = torch.promote_types(x.dtype, torch.float32)
        gates = self.input(x)
        with torch.autocast(x.device.type, enabled=False):
            gates = gates.to(wide).unflatten(2, (self.n_heads, -1))
            held = self.empty_state(x.shape[0], 0, wide, x.device) if state is None else state
            h, after = memory(gates, self.recurrent.to(wide), held, sequence.starts, sequence.real)
            y = self.norm(h).to(x.dtype)
        y = F.pad(y, self.others) if self.output is None else self.output(y)
        return Result(y, None if state is None else after)

    def flops(self, queries: int, keys: int) -> int:
        """Products of the four gates with the input and with their head's h, and the projection."""
        linear = sum(linear_flops(layer, queries) for layer in (self.input, self.output))
        return linear + 2 * self.recurrent.numel() * queries
