"""The recurrent block of Griffin as a mixer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from bakeoff.interfaces import (
    Capabilities,
    Cut,
    LayerContext,
    Need,
    Part,
    Reference,
    Result,
    Sequence,
    SequenceMixer,
    init,
)
from bakeoff.interfaces.cut import check_heads
from bakeoff.parts.activations import ActivationName, activation
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.short_convolution import ShortConvolution
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_griffin.recurrence import rg_lru, rg_lru_naive, rg_lru_step

if TYPE_CHECKING:
    from bakeoff.interfaces.spans import Spans
    from torch.distributed.device_mesh import DeviceMesh

#: c of the paper: how many times softplus(Lambda) a decay can be.
_SPREAD = 8.0


class RGLRUState(NamedTuple):
    """The convolution's tail (B, conv_width - 1, W), and h (B, W), float32 or wider."""

    tail: Tensor
    h: Tensor


@dataclass(frozen=True)
class Firsts(Need):
    """True at the first token of each document, (B or 1, T); None where this call holds none."""

    def derive(self, sequence: Sequence) -> Tensor | None:
        """From `starts`; where nothing is said of documents, from what the states hold."""
        if sequence.starts is not None:
            return sequence.starts
        past, real = sequence.past, sequence.real
        if real is None and past is not None and not past.ragged and past.longest:
            return None
        first = sequence.index == 0
        return first if real is None else first & real


class RGLRU(SequenceMixer):
    """A gated linear recurrent unit between a short convolution and a gate: Griffin's and Hawk's recurrent block.

        x_t = conv(W_input u)_t                     r_t, i_t = sigmoid(W_r x_t + b_r), sigmoid(W_i x_t + b_i)
        log a_t = -8 softplus(Lambda) r_t           h_t = a_t h_(t-1) + sqrt(1 - a_t^2) i_t x_t
        y_t = W_output (f(W_gate u_t) h_t)

    in which W_r and W_i are block-diagonal and all products have biases. The first x of a document enters h as it is,
    times i. Several tokens are computed by a scan, a single one by the recurrence. exp(-softplus(Lambda)) starts
    between `a_min` and `a_max` with uniform squares, as in the authors' code.

    Parameters
    ----------
    width : W, channels of the recurrence; null: `d_model`.
    n_heads : blocks of W_r and W_i, a divisor of W.
    conv_width : taps of the short convolution, the token itself included.
    activation : f, of the gate's branch.
    a_min, a_max : see above.
    """

    reference = Reference(
        "De et al.",
        2024,
        "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language Models",
        "https://arxiv.org/abs/2402.19427",
    )
    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )
    keep_float32 = ("Lambda",)

    def __init__(
        self,
        context: LayerContext,
        *,
        width: int | None = None,
        n_heads: int = 16,
        conv_width: int = 4,
        activation: ActivationName = "gelu_tanh",
        a_min: float = 0.9,
        a_max: float = 0.999,
    ):
        super().__init__(context)
        d = context.d_model
        W = d if width is None else width
        if W < 1 or n_heads < 1 or W % n_heads:
            raise ValueError(f"width {W} cannot be cut into n_heads {n_heads} equal blocks")
        if not 0 < a_min <= a_max < 1:
            raise ValueError(f"a_min is {a_min} and a_max {a_max}; they must lie in 0 < a_min <= a_max < 1")
        self.width, self.n_heads, self.activation, self.a_range = W, n_heads, activation, (a_min, a_max)
        self.gate = Linear(d, W, bias=True, role="gate")
        self.input = Linear(d, W, bias=True)
        self.convolve = ShortConvolution(context, channels=W, width=conv_width)
        self.recurrence_gate = BlockDiagonal(context, width=W, n_blocks=n_heads)
        self.input_gate = BlockDiagonal(context, width=W, n_blocks=n_heads)
        self.Lambda = nn.Parameter(torch.empty(W))
        self.output = Linear(W, d, bias=True, role="output")
        self.firsts = Firsts()

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with a width of its own."""
        return [{"n_heads": 4}, {"width": 24, "n_heads": 3, "conv_width": 3, "activation": "gelu"}]

    def reset_parameters(self) -> None:
        """Lambda as published."""
        init.fill(self.Lambda, self._inverse_softplus_of_decay)

    def _inverse_softplus_of_decay(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        low, high = self.a_range
        a = init.uniform(low**2, high**2)(shape, generator).double().sqrt()
        return (1 / a - 1).log().float()

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the blocks of W_r and W_i, and their channels."""
        check_heads(self.n_heads, ranks)
        N = self.width // self.n_heads
        plan = columns(self, "gate", "input", "convolve", unit=N) | columns(self, "recurrence_gate", "input_gate")
        return plan | {"Lambda": Cut(0, N)} | rows(self, "output", unit=N)

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the blocks of this rank, and their channels."""
        self.n_heads //= ranks.size()
        self.width //= ranks.size()

    def needs(self) -> tuple[Need, ...]:
        """Where documents begin."""
        return (self.firsts,)

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> RGLRUState:
        """Zeros; the convolution's tail in `dtype`, h in float32 or wider."""
        wide = torch.promote_types(dtype, torch.float32)
        h = torch.zeros(batch, self.width, dtype=wide, device=device)
        return RGLRUState(self.convolve.empty_state(batch, max_length, dtype, device), h)

    def forward(self, x: Tensor, sequence: Sequence, state: RGLRUState | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        return self._mix(x, sequence, state, ShortConvolution.__call__, partial(_scan, spans=sequence.spans))

    def naive(self, x: Tensor, sequence: Sequence, state: RGLRUState | None = None) -> Result:
        """The same by convolution and recurrence of one token after the other."""
        return self._mix(x, sequence, state, ShortConvolution.naive, rg_lru_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: RGLRUState | None, convolve: Any, recur: Any) -> Result:
        gate = activation(self.activation)(self.gate(x))
        convolved, tail, *_ = convolve(self.convolve, self.input(x), sequence, None if state is None else state.tail)
        r, i = self.recurrence_gate(convolved), self.input_gate(convolved)
        wide = torch.promote_types(x.dtype, torch.float32)
        r = r.to(wide)
        if sequence.real is not None:
            r = r.masked_fill(~sequence.real[:, :, None], -torch.inf)
        given = (convolved.to(wide), r, i.to(wide), F.softplus(self.Lambda.to(wide)) * -_SPREAD)
        h, held = recur(*given, first=sequence[self.firsts], state=None if state is None else state.h)
        after = None if state is None else RGLRUState(tail, held)
        return Result(self.output(gate * h.to(gate.dtype)), after)

    def flops(self, queries: int, keys: int) -> int:
        """Projections, gates and convolution; the recurrence is elementwise."""
        products = (self.gate, self.input, self.recurrence_gate, self.input_gate, self.output)
        return sum(linear_flops(layer, queries) for layer in products) + self.convolve.flops(queries, keys)


def _scan(
    x: Tensor,
    r: Tensor,
    i: Tensor,
    floor: Tensor,
    *,
    first: Tensor | None,
    state: Tensor | None,
    spans: Spans | None,
) -> tuple[Tensor, Tensor | None]:
    if state is not None and x.shape[1] == 1 and not torch.is_grad_enabled():
        return rg_lru_step(x, r, i, floor, state, first)
    return rg_lru(x, r, i, floor, first=first, state=state, spans=spans)


class BlockDiagonal(Part):
    """`x W + b` with a block-diagonal W, (n_blocks, N, N), and b (n_blocks, N), where n_blocks N = width."""

    roles = {"weight": "gate", "bias": "vector"}  # noqa: RUF012

    def __init__(self, context: LayerContext, *, width: int, n_blocks: int):
        super().__init__(context)
        self.weight = nn.Parameter(torch.empty(n_blocks, width // n_blocks, width // n_blocks))
        self.bias = nn.Parameter(torch.empty(n_blocks, width // n_blocks))

    def reset_parameters(self) -> None:
        """Each block as a matrix of its own, biases zero."""
        init.fill(self.weight, init.normal(self.weight.shape[1] ** -0.5))
        init.fill(self.bias, init.constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, width)."""
        blocks = x.reshape(-1, *self.bias.shape).transpose(0, 1)  # (n_blocks, B T, N)
        return torch.baddbmm(self.bias.unsqueeze(1), blocks, self.weight).transpose(0, 1).reshape(x.shape)
