"""RWKV-7's time mixing."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import Capabilities, Cut, LayerContext, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.interfaces.cut import check_heads
from bakeoff.parts.kernels import Backend, choose
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.scans.along import changed_along
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_linear import rwkv7_values as values
from bakeoff_linear.chunks import check_chunk
from bakeoff_linear.generalised_delta_rule import (
    generalised_delta_rule,
    generalised_delta_rule_naive,
    generalised_delta_rule_step,
)
from bakeoff_linear.keyed_mixer import zero_padding
from bakeoff_linear.low_rank import LowRank
from bakeoff_linear.token_shift import mixed, token_before
from bakeoff_linear.unit import unit

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: The log decay lies between this and 0.
_LOG_DECAY = -math.exp(-0.5)
_FIRST = "rwkv7.value"


class RWKV7State(NamedTuple):
    """The last token (B, 1, D), and the state (B, H, N, N), float32 or wider."""

    token: Tensor
    memory: Tensor


class RWKV7(SequenceMixer):
    """A state from which each token removes under one key and to which it adds under another (RWKV-7).

    With x' the token before x, r, k, v and the low-rank w, a, g and s are products of `x + m (x' - x)`, m learned for
    each of them; v is drawn by sigmoid(s) to what it is in the first layer. With c the keys times `key_scale`, of unit
    length in each head, and with sigmoid(a) as the rate of learning:

        w_t = exp(-exp(-1/2) sigmoid(w))        k_t = k (1 + (a - 1) * key_rate)
        S_t = S_(t-1) (diag(w_t) - c_t (a c_t)^T) + v_t k_t^T
        out_t = W ((groupnorm(S_t r_t) + (r_t . bonus k_t) v_t) * g)

    Parameters
    ----------
    head_width : N, a divisor of D; each head has a state (N, N).
    decay_rank, rate_rank, value_rank, gate_rank : ranks of w, a, s and g (null: in proportion to the root of D).
    value_residual : draw v to that of the first layer (null: in all layers but the model's first).
    chunk : tokens that are computed at once in matrix products, a power of two.
    eps : added to the variance in the norm, of each head (null: 1e-5 N).
    backend : plain torch, or the kernels of flash-linear-attention on a GPU.

    Raises `CapabilityError` where there is no first layer to draw values to.
    """

    reference = Reference(
        "Peng et al.",
        2025,
        "RWKV-7 'Goose' with Expressive Dynamic State Evolution",
        "https://arxiv.org/abs/2503.14456",
    )
    reads = (_FIRST,)
    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )
    roles = {"bonus": "vector"}  # noqa: RUF012

    def __init__(
        self,
        context: LayerContext,
        *,
        head_width: int = 64,
        decay_rank: int | None = None,
        rate_rank: int | None = None,
        value_rank: int | None = None,
        gate_rank: int | None = None,
        value_residual: bool | None = None,
        chunk: int = 32,
        eps: float | None = None,
        backend: Backend = "auto",
    ):
        super().__init__(context)
        d = context.d_model
        if head_width < 1 or d % head_width:
            raise ValueError(f"head_width is {head_width} and d_model {d}; head_width must divide d_model")
        self.n_heads, self.head_width, self.chunk = d // head_width, head_width, check_chunk(chunk)
        self.eps = 1e-5 * head_width if eps is None else eps
        self.place = (context.layer, context.depth)
        self.receptance, self.key, self.value = Linear(d, d), Linear(d, d), Linear(d, d)
        self.decay = LowRank(context, width=d, rank=decay_rank or values.rank(2.5, d), inner="tanh")
        self.rate = LowRank(context, width=d, rank=rate_rank or values.rank(2.5, d))
        self.gate = LowRank(context, width=d, rank=gate_rank or values.rank(5.0, d), inner="sigmoid")
        later = context.layer > 0 if value_residual is None else value_residual
        self.residual = LowRank(context, width=d, rank=value_rank or values.rank(1.7, d)) if later else None
        for name in values.MIXES:
            self.register_parameter(f"mix_{name}", nn.Parameter(torch.empty(d)))
        self.vectors = (*values.VECTORS, "residual_bias") if later else values.VECTORS
        for name in self.vectors:
            self.register_parameter(name, nn.Parameter(torch.empty(d)))
        self.bonus = nn.Parameter(torch.empty(self.n_heads, head_width))
        self.output = Linear(d, d, role="output")
        self.scan = choose(
            backend,
            part="rwkv7",
            torch=partial(generalised_delta_rule, bound=_LOG_DECAY),
            kernels="bakeoff_linear.kernels:generalised_delta_rule",
            package="fla",
        )

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Several chunks; chunks that several documents share, with values drawn to a first layer's."""
        drawn = {"head_width": 8, "decay_rank": 3, "chunk": 32, "eps": 1e-3, "value_residual": True}
        return [{"head_width": 4, "chunk": 4}, drawn]

    def reset_parameters(self) -> None:
        """As published: by channel, by the channel's place in its head, and by the layer's place in the model."""
        d = self.output.weight.shape[0]
        for name, vector in values.vectors(d, self.head_width, *self.place).items():
            if name != "residual_bias" or self.residual is not None:
                init.fill(getattr(self, name), init.exactly(vector))
        init.fill(self.bonus, init.constant(-0.04))
        for product, bound in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            init.fill(product.weight, init.uniform(-bound * d**-0.5, bound * d**-0.5))
        init.fill(self.output.weight, init.constant(0.0))

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads, and all of what mixes tokens and of what their decays and gates come from.

        Of the first layer's values, it shows those of its heads to later layers.
        """
        check_heads(self.n_heads, ranks, "d_model / head_width")
        low = ("decay", "rate", "gate") if self.residual is None else ("decay", "rate", "gate", "residual")
        inner, N = ("receptance", "key", "value", *(f"{name}.up" for name in low)), self.head_width
        plan = columns(self, *inner, unit=N) | rows(self, "output", unit=N)
        return plan | {name: Cut(0, N) for name in self.vectors} | {"bonus": Cut(0)}

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank."""
        self.n_heads //= ranks.size()

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> RWKV7State:
        """Zeros; the token in `dtype`, the state in float32 or wider."""
        token = torch.zeros(batch, 1, self.output.weight.shape[0], dtype=dtype, device=device)
        shape = (batch, self.n_heads, self.head_width, self.head_width)
        return RWKV7State(token, torch.zeros(shape, dtype=torch.promote_types(dtype, torch.float32), device=device))

    def forward(self, x: Tensor, sequence: Sequence, state: RWKV7State | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        return self._mix(x, sequence, state, self._scan)

    def naive(self, x: Tensor, sequence: Sequence, state: RWKV7State | None = None) -> Result:
        """The same by the recurrence of one token after the other."""
        return self._mix(x, sequence, state, generalised_delta_rule_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: RWKV7State | None, scan: Any) -> Result:
        before, token = token_before(x, sequence, None if state is None else state.token)
        streams = mixed(x, before, [getattr(self, f"mix_{name}") for name in values.MIXES])
        of = dict(zip(values.MIXES, streams, strict=True))
        r, k, v = self.receptance(of["receptance"]), self.key(of["key"]), self.value(of["value"])
        v, shown = self._drawn(v, of["value"], sequence)
        decay, rate, gate = self.decay(of["decay"]), self.rate(of["rate"]), self.gate(of["gate"])
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            r, k, v, decay, rate = (t.to(wide) for t in (r, k, v, decay, rate))
            log_w = torch.sigmoid(decay + self.decay_bias) * _LOG_DECAY
            rate = torch.sigmoid(rate + self.rate_bias)
            removed = unit(self._heads(k * self.key_scale), eps=1e-24)
            k = k * torch.addcmul(1 - self.key_rate, rate, self.key_rate)
            given = [*map(self._heads, (r, k, v)), -removed, removed * self._heads(rate), self._heads(log_w)]
            for i in (1, 4, 5):
                given[i] = zero_padding(given[i], sequence)
            memory = None if state is None else state.memory
            if sequence.spans is None:
                y, memory = scan(*given, state=memory, segments=sequence.segments)
            else:
                y = changed_along(scan, *given, spans=sequence.spans)
            y = F.layer_norm(y, (self.head_width,), eps=self.eps).flatten(2) * self.norm_weight + self.norm_bias
            bonus = (given[0] * given[1] * self.bonus).sum(-1, keepdim=True) * given[2]
            y = (y + bonus.flatten(2)).to(x.dtype)
        return Result(self.output(y * gate), None if state is None else RWKV7State(token, memory), memory=shown)

    def _drawn(self, v: Tensor, x: Tensor, sequence: Sequence) -> tuple[Tensor, dict[str, Tensor]]:
        """Values, drawn to those of the first layer, and what is shown to later layers."""
        if self.residual is None:
            return v, {_FIRST: v}
        if _FIRST not in sequence.memory:
            raise CapabilityError(
                "rwkv7 draws values to those of the first rwkv7 layer, but none comes before this one; "
                "give that layer a block of its own with value_residual: false"
            )
        return v + (sequence.memory[_FIRST] - v) * torch.sigmoid(self.residual_bias + self.residual(x)), {}

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.n_heads, self.head_width))

    def _scan(self, *given: Tensor, state: Tensor | None, segments: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if state is not None and given[0].shape[1] == 1:
            return generalised_delta_rule_step(*given, state=state, segments=segments)
        return self.scan(*given, chunk=self.chunk, state=state, segments=segments)

    def flops(self, queries: int, keys: int) -> int:
        """Projections, and the recurrence's products: 2 N N a head each for finding, removing, writing, reading."""
        products = (self.receptance, self.key, self.value, self.output)
        low = (self.decay, self.rate, self.gate, self.residual)
        linear = sum(linear_flops(layer, queries) for layer in products)
        linear += sum(layer.flops(queries, keys) for layer in low if layer is not None)
        return linear + 8 * self.n_heads * self.head_width**2 * queries
