"""What the mixers of the delta rule have in common."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from bakeoff.interfaces import Capabilities, Cut, LayerContext, Result, Sequence, SequenceMixer, init
from bakeoff.interfaces.cut import check_heads
from bakeoff.parts.kernels import Backend, choose
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.scans.along import changed_along
from bakeoff.parts.short_convolution import ShortConvolution, convolution_step
from torch import Tensor
from torch.nn import functional as F

from bakeoff_linear.chunks import check_chunk
from bakeoff_linear.delta_rule import delta_rule, delta_rule_naive, delta_rule_step
from bakeoff_linear.keyed_mixer import zero_padding
from bakeoff_linear.unit import unit

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class DeltaState(NamedTuple):
    """Tails of the convolutions of queries, keys and values side by side, (B, width - 1, channels), and the state
    (B, H, P, N), float32 or wider."""

    tail: Tensor
    memory: Tensor


class DeltaMixer(SequenceMixer):
    """Queries, keys and values by short convolutions and SiLU, queries and keys of unit length, the delta rule.

    A subclass says how the state decays and what becomes of what is read.

    Parameters
    ----------
    part : the component's name, for messages.
    n_heads : H, heads of values, each with a state (P, N).
    n_key_heads : G, heads of queries and keys, a divisor of H; value head h reads key head h // (H / G).
    key_width, value_width : N and P.
    conv_width : taps of the short convolutions.
    negative_eigenvalues : beta reaches from 0 to 2 instead of 1, so that a write can turn what it finds around.
    chunk : tokens that are computed at once.
    backend : plain torch, or kernels on a GPU.
    """

    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        part: str,
        n_heads: int,
        n_key_heads: int,
        key_width: int,
        value_width: int,
        conv_width: int,
        negative_eigenvalues: bool,
        chunk: int,
        backend: Backend,
    ):
        super().__init__(context)
        sizes = {"n_heads": n_heads, "n_key_heads": n_key_heads, "key_width": key_width, "value_width": value_width}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}; it must be at least 1")
        if n_heads % n_key_heads:
            raise ValueError(f"n_heads is {n_heads} and n_key_heads {n_key_heads}; n_key_heads must divide n_heads")
        self.n_heads, self.n_key_heads, self.key_width, self.value_width = sizes.values()
        self.chunk, self.strength = check_chunk(chunk), 2.0 if negative_eigenvalues else 1.0
        d, keys, values = context.d_model, n_key_heads * key_width, n_heads * value_width
        self.query = Linear(d, keys)
        self.key = Linear(d, keys)
        self.value = Linear(d, values)
        self.beta = Linear(d, n_heads, role="gate")
        convolution = partial(ShortConvolution, context, width=conv_width, bias=False, activation="silu")
        self.convolve_query = convolution(channels=keys)
        self.convolve_key = convolution(channels=keys)
        self.convolve_value = convolution(channels=values)
        self.output = Linear(values, d, role="output")
        limit = f"key_width is {key_width} and value_width {value_width}, of at most 256" if key_width > 256 else None
        self.scan = choose(
            backend,
            part=part,
            torch=delta_rule,
            kernels="bakeoff_linear.kernels:delta_rule",
            package="fla",
            limit=limit,
        )

    @abstractmethod
    def _log_decay(self, x: Tensor, wide: torch.dtype) -> Tensor | None:
        """Log decays, (B, T, H) or (B, T, H, N), of at most 0; None for no decay."""

    @abstractmethod
    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        """What is read, (B, T, H, P), as the output projection takes it, (B, T, H P)."""

    @property
    def group(self) -> int:
        """Heads of values that read one head of keys."""
        return self.n_heads // self.n_key_heads

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads of keys, and the heads of values that read them."""
        check_heads(self.n_key_heads, ranks, "n_heads" if self.group == 1 else "n_key_heads")
        keys, values = self.key_width, self.group * self.value_width
        plan = columns(self, "query", "key", unit=keys) | columns(self, "value", unit=values)
        plan |= columns(self, "convolve_query", "convolve_key", unit=keys)
        plan |= columns(self, "convolve_value", unit=values) | columns(self, "beta", unit=self.group)
        return plan | rows(self, "output", unit=values)

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank."""
        self.n_heads //= ranks.size()
        self.n_key_heads //= ranks.size()

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> DeltaState:
        """Zeros; the convolutions' tails in `dtype`, the state in float32 or wider."""
        tails = [c.empty_state(batch, max_length, dtype, device) for c in self._convolutions()]
        shape = (batch, self.n_heads, self.value_width, self.key_width)
        return DeltaState(
            torch.cat(tails, 2), torch.zeros(shape, dtype=torch.promote_types(dtype, torch.float32), device=device)
        )

    def forward(self, x: Tensor, sequence: Sequence, state: DeltaState | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        if state is not None and sequence.length == 1 and sequence.real is None:
            return self._step(x, sequence.segments, state)
        return self._mix(x, sequence, state, ShortConvolution.__call__, self._scan)

    def naive(self, x: Tensor, sequence: Sequence, state: DeltaState | None = None) -> Result:
        """The same by convolution and recurrence of one token after the other."""
        return self._mix(x, sequence, state, ShortConvolution.naive, delta_rule_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: DeltaState | None, convolve: Any, scan: Any) -> Result:
        widths = [convolution.channels for convolution in self._convolutions()]
        tails: Any = (None, None, None) if state is None else state.tail.split(widths, 2)
        projected = zip(self._convolutions(), (self.query(x), self.key(x), self.value(x)), tails, strict=True)
        mixed = [convolve(convolution, value, sequence, tail) for convolution, value, tail in projected]
        wide = torch.promote_types(x.dtype, torch.float32)
        beta, log_a = self._gates(x, wide)
        with torch.autocast(x.device.type, enabled=False):
            q, k = (result.y.to(wide).unflatten(2, (self.n_key_heads, self.key_width)) for result in mixed[:2])
            v = mixed[2].y.to(wide).unflatten(2, (self.n_heads, self.value_width))
            beta = zero_padding(beta, sequence)
            log_a = None if log_a is None else zero_padding(log_a, sequence)
            given = (unit(q, self.key_width**-0.5), unit(k), v, beta, log_a)
            memory = None if state is None else state.memory
            if sequence.spans is None:
                y, memory = scan(*given, state=memory, segments=sequence.segments)
            else:
                y = changed_along(scan, *given, spans=sequence.spans)
        after = None if state is None else DeltaState(torch.cat([result.state for result in mixed], 2), memory)
        return Result(self.output(self._finish(y, x)), after)

    def _step(self, x: Tensor, segments: Tensor | None, state: DeltaState) -> Result:
        """One real token, its convolutions side by side."""
        given = torch.cat([self.query(x), self.key(x), self.value(x)], 2)
        weight = torch.cat([convolution.weight for convolution in self._convolutions()]).to(x.dtype)
        y, tail = convolution_step(given, weight, None, state.tail, segments)
        wide = torch.promote_types(x.dtype, torch.float32)
        beta, log_a = self._gates(x, wide)
        with torch.autocast(x.device.type, enabled=False):
            keys = 2 * self.n_key_heads * self.key_width
            y = F.silu(y).to(wide)
            v = y[..., keys:].unflatten(2, (self.n_heads, self.value_width))
            q, k = unit(y[..., :keys].unflatten(2, (2, self.n_key_heads, self.key_width))).unbind(2)
            given = (q * self.key_width**-0.5, k, v, beta, log_a)
            y, memory = delta_rule_step(*given, state=state.memory, segments=segments)
        return Result(self.output(self._finish(y, x)), DeltaState(tail, memory))

    def _gates(self, x: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """How much a token overwrites, (B, T, H), and log decays."""
        beta = self.beta(x).to(wide).sigmoid()
        return beta if self.strength == 1.0 else beta * self.strength, self._log_decay(x, wide)

    def _scan(self, *given: Any, state: Tensor | None, segments: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.scan(*given, chunk=self.chunk, state=state, segments=segments)

    def _convolutions(self) -> tuple[ShortConvolution, ...]:
        return self.convolve_query, self.convolve_key, self.convolve_value

    def _products(self) -> tuple[Linear | None, ...]:
        """Learned products that are done for every token."""
        return self.query, self.key, self.value, self.beta, self.output

    def flops(self, queries: int, keys: int) -> int:
        """Projections, convolutions, and the recurrence's products: 2 P N per head each for finding, writing, reading.

        What the chunked form does in exchange for matrix products is not counted, nor are decays, norms and gates.
        """
        linear = sum(linear_flops(layer, queries) for layer in self._products())
        convolution = sum(c.flops(queries, keys) for c in self._convolutions())
        return linear + convolution + 6 * self.n_heads * self.value_width * self.key_width * queries


def equal_widths(d_model: int, n_heads: int) -> int:
    """Channels of each head where the heads share `d_model`; `ValueError` if they do not."""
    if n_heads < 1 or d_model % n_heads:
        raise ValueError(f"n_heads is {n_heads} and d_model {d_model}; n_heads must divide d_model, or give the widths")
    return d_model // n_heads


def decay_rates(low: float, high: float) -> init.Filler:
    """Logarithms of rates that are uniform from `low` to `high`."""
    return lambda shape, generator: init.uniform(low, high)(shape, generator).log()
