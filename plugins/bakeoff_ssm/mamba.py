"""Mamba: gated state-space mixing whose decays depend on the token, one for each channel and state."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from bakeoff.interfaces import Capabilities, Cut, LayerContext, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.interfaces.norm import Norm
from bakeoff.parts.collectives import summed_for_each
from bakeoff.parts.kernels import Backend, choose
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.short_convolution import ShortConvolution
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_ssm.selective import selective_scan, selective_scan_naive, selective_scan_step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class MambaState(NamedTuple):
    """Tail of the convolution (B, width - 1, E), and the state (B, E, N), float32 or wider."""

    x: Tensor
    ssm: Tensor


class Mamba(SequenceMixer):
    """A selective state-space model: what it keeps and what it forgets depends on the token.

    With projections z and x of the input, x through a short causal convolution and SiLU, then dt, B and C of x:

        dt_t = softplus(W_dt W_low x_t + dt_bias)        h_t = exp(-exp(A_log) dt_t) h_(t-1) + dt_t x_t B_t
        y_t = C_t h_t + D x_t                            out_t = W (y_t * silu(z_t))

    where each of E channels has a state h of N numbers. Several tokens are computed by blocks, a single one by the
    recurrence.

    Parameters
    ----------
    expand : inner width E over `d_model`.
    state_size : N.
    dt_rank : width between the two products that give dt; null: d_model / 16, rounded up.
    conv_width : taps of the short convolution, the token itself included.
    dt_min, dt_max : softplus(dt_bias) starts log-uniform between them.
    bias : whether the projections of input and output have one.
    conv_bias : whether the convolution has one.
    norm_inputs : normalises the narrow dt, B and C, each with its own gains (Jamba), or null.
    backend : `torch`, `kernels` of the package mamba_ssm on a GPU, or `auto`.
    """

    reference = Reference(
        "Gu and Dao",
        2023,
        "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
        "https://arxiv.org/abs/2312.00752",
    )
    capabilities = Capabilities(
        documents=True,
        padding=True,
        state=True,
        constant_state=True,
        compile=True,
        tensor_parallel=True,
        context_parallel=True,
    )
    keep_float32 = ("A_log", "dt_bias", "D")
    roles = {"A_log": "vector"}  # noqa: RUF012
    over: DeviceMesh | None = None
    """Ranks that share out the channels; dt, B and C are sums over those of all."""

    def __init__(
        self,
        context: LayerContext,
        *,
        expand: float = 2.0,
        state_size: int = 16,
        dt_rank: int | None = None,
        conv_width: int = 4,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        bias: bool = False,
        conv_bias: bool = True,
        norm_inputs: Callable[[LayerContext], Norm] | None = None,
        backend: Backend = "auto",
    ):
        super().__init__(context)
        d = context.d_model
        self.inner, self.state_size = round(expand * d), state_size
        self.dt_rank = math.ceil(d / 16) if dt_rank is None else dt_rank
        _check(self.inner, expand, state_size, self.dt_rank)
        if not 0 < dt_min <= dt_max:
            raise ValueError(f"dt from {dt_min} to {dt_max} is no positive range")
        self.dt_range = (dt_min, dt_max)
        self.z = Linear(d, self.inner, bias=bias, role="gate")
        self.x = Linear(d, self.inner, bias=bias)
        self.convolve = ShortConvolution(
            context, channels=self.inner, width=conv_width, bias=conv_bias, activation="silu"
        )
        self.dt_low = Linear(self.inner, self.dt_rank, role="gate")
        self.B = Linear(self.inner, state_size)
        self.C = Linear(self.inner, state_size)
        self.dt = Linear(self.dt_rank, self.inner, role="gate")
        widths = (self.dt_rank, state_size, state_size)
        norms = [None if norm_inputs is None else norm_inputs(context.child(d_model=width)) for width in widths]
        self.dt_norm, self.B_norm, self.C_norm = norms
        self.A_log = nn.Parameter(torch.empty(self.inner, state_size))
        self.dt_bias = nn.Parameter(torch.empty(self.inner))
        self.D = nn.Parameter(torch.empty(self.inner))
        self.output = Linear(self.inner, d, bias=bias, role="output")
        self.scan = choose(
            backend,
            part="mamba",
            torch=selective_scan,
            kernels="bakeoff_ssm.kernels:selective_scan",
            package="mamba_ssm",
            limit=f"state_size is {state_size}, over 256" if state_size > 256 else None,
        )

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As published; and with everything that is optional the other way."""
        other = {"expand": 1.5, "state_size": 3, "dt_rank": 2, "conv_width": 3, "bias": True, "conv_bias": False}
        return [{"state_size": 4}, other | {"norm_inputs": {"use": "rms_norm"}}]

    def reset_parameters(self) -> None:
        """Decay rates 1 to N in every channel, step sizes and skips, as published."""
        init.fill(self.A_log, init.exactly(torch.arange(1, self.state_size + 1).double().log().float()))
        init.fill(self.dt_bias, init.step_sizes(*self.dt_range))
        init.fill(self.D, init.constant(1.0))
        bound = self.dt_rank**-0.5
        init.fill(self.dt.weight, init.uniform(-bound, bound))

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the E channels; what is made of all of them, the narrow dt, B and C, is summed."""
        plan = columns(self, "z", "x", "convolve", "dt") | rows(self, "dt_low", "B", "C", "output")
        return plan | dict.fromkeys(("A_log", "dt_bias", "D"), Cut(0))

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the channels of this rank."""
        self.inner //= ranks.size()
        self.over = ranks

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> MambaState:
        """Zeros; the convolution's tail in `dtype`, the state in float32 or wider."""
        tail = self.convolve.empty_state(batch, max_length, dtype, device)
        wide = torch.promote_types(dtype, torch.float32)
        return MambaState(tail, torch.zeros(batch, self.inner, self.state_size, dtype=wide, device=device))

    def forward(self, x: Tensor, sequence: Sequence, state: MambaState | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        decoding = state is not None and x.shape[1] == 1
        scan = selective_scan_step if decoding else partial(self.scan, spans=sequence.spans)
        return self._mix(x, sequence, state, ShortConvolution.__call__, scan)

    def naive(self, x: Tensor, sequence: Sequence, state: MambaState | None = None) -> Result:
        """The same by convolution and recurrence of one token after the other."""
        return self._mix(x, sequence, state, ShortConvolution.naive, selective_scan_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: MambaState | None, convolve: Any, scan: Any) -> Result:
        z = self.z(x)
        values, tail, *_ = convolve(self.convolve, self.x(x), sequence, None if state is None else state.x)
        dt, B, C = self._narrow_inputs(values)
        if self.dt_norm is not None:
            dt, B, C = self.dt_norm(dt), self.B_norm(B), self.C_norm(C)
        dt = self.dt(dt)
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            dt = F.softplus(dt.to(wide) + self.dt_bias.to(wide))
            if sequence.real is not None:
                dt = dt * sequence.real[:, :, None].to(wide)
            given = (values.to(wide), dt, -self.A_log.to(wide).exp(), B.to(wide), C.to(wide), self.D.to(wide))
            y, ssm = scan(*given, state=None if state is None else state.ssm, segments=sequence.segments)
            y = (y * F.silu(z.to(wide))).to(z.dtype)
        return Result(self.output(y), None if state is None else MambaState(tail, ssm))

    def _narrow_inputs(self, values: Tensor) -> tuple[Tensor, ...]:
        """What gives dt, (B, T, dt_rank), and B and C, (B, T, N) each, of all channels."""
        made = self.dt_low(values), self.B(values), self.C(values)
        if self.over is None:
            return made
        whole = summed_for_each(torch.cat(made, -1), self.over.get_group())
        return whole.split([t.shape[-1] for t in made], -1)

    def flops(self, queries: int, keys: int) -> int:
        """Projections, the convolution, and the recurrence's products: 2 N per channel each for update and readout."""
        products = (self.z, self.x, self.dt_low, self.B, self.C, self.dt, self.output)
        linear = sum(linear_flops(layer, queries) for layer in products)
        return linear + self.convolve.flops(queries, keys) + 4 * self.inner * self.state_size * queries


def _check(inner: int, expand: float, state_size: int, dt_rank: int) -> None:
    if min(inner, state_size, dt_rank) < 1:
        raise ValueError(
            f"inner width {inner} (expand {expand} x d_model), state_size {state_size} and dt_rank {dt_rank} "
            "must each be at least 1"
        )
