"""Mamba-2: gated state-space mixing with one decay a head."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from bakeoff.interfaces import Capabilities, Cut, LayerContext, Part, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.interfaces.cut import check_heads
from bakeoff.parts.collectives import summed_for_each
from bakeoff.parts.kernels import Backend, choose
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.short_convolution import ShortConvolution
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_ssm.ssd import ssd, ssd_naive, ssd_step

if TYPE_CHECKING:
    from bakeoff.interfaces.spans import Spans
    from torch.distributed.device_mesh import DeviceMesh


class Mamba2State(NamedTuple):
    """Tails of the three convolutions (B, width - 1, channels), and the state (B, H, P, N), float32 or wider."""

    x: Tensor
    B: Tensor
    C: Tensor
    ssm: Tensor


class Mamba2(SequenceMixer):
    """A selective state-space model whose decay is one number per head and token.

    With projections z, x, B, C and dt of the input; x, B and C through a short causal convolution and SiLU:

        dt_t = softplus(dt_t + dt_bias)        S_t = exp(-exp(A_log) dt_t) S_(t-1) + dt_t x_t B_t^T
        y_t = S_t C_t + D x_t                  out_t = W rmsnorm(y_t * silu(z_t))

    Several tokens are computed by chunks in matrix products, a single one by the recurrence.

    Parameters
    ----------
    expand : inner width over `d_model`.
    state_size : N, the state that each channel has.
    head_width : P, channels that share one decay.
    n_groups : G, groups of heads that share B and C, and are normalised together.
    conv_width : taps of the short convolution, the token itself included.
    chunk : tokens that are computed as one block of masked attention, at most; null: the power of two at or below
        sqrt(P N), where the work inside chunks balances the work on their states.
    dt_min, dt_max : softplus(dt_bias) starts log-uniform between them.
    A_min, A_max : exp(A_log) starts uniform between them.
    bias : whether the projections have one.
    conv_bias : whether the convolution has one.
    eps : added to the mean square in the norm.
    backend : plain torch, or kernels on a GPU.
    """

    reference = Reference(
        "Dao and Gu",
        2024,
        "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality",
        "https://arxiv.org/abs/2405.21060",
    )
    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )
    keep_float32 = ("A_log", "dt_bias", "D")
    reads_groups: tuple[int, ...] | None = None
    """Where ranks share out the heads and have B and C of all groups: those that heads of this rank read."""

    def __init__(
        self,
        context: LayerContext,
        *,
        expand: float = 2.0,
        state_size: int = 128,
        head_width: int = 64,
        n_groups: int = 1,
        conv_width: int = 4,
        chunk: int | None = None,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        A_min: float = 1.0,
        A_max: float = 16.0,
        bias: bool = False,
        conv_bias: bool = True,
        eps: float = 1e-5,
        backend: Backend = "auto",
    ):
        super().__init__(context)
        inner = round(expand * context.d_model)
        if chunk is None:
            chunk = 2 ** int(math.log2(head_width * state_size) / 2)
        _check(inner, head_width, n_groups, chunk)
        if not (0 < dt_min <= dt_max and 0 < A_min <= A_max):
            raise ValueError(f"dt from {dt_min} to {dt_max} and A from {A_min} to {A_max} are not positive ranges")
        self.inner, self.n_heads, self.head_width = inner, inner // head_width, head_width
        self.state_size, self.n_groups, self.chunk = state_size, n_groups, chunk
        self.dt_range, self.A_range = (dt_min, dt_max), (A_min, A_max)
        d, shared = context.d_model, n_groups * state_size
        self.z = Linear(d, inner, bias=bias, role="gate")
        self.x = Linear(d, inner, bias=bias)
        self.B = Linear(d, shared, bias=bias)
        self.C = Linear(d, shared, bias=bias)
        self.dt = Linear(d, self.n_heads, bias=bias, role="gate")
        convolution = partial(ShortConvolution, context, width=conv_width, bias=conv_bias, activation="silu")
        self.convolve_x = convolution(channels=inner)
        self.convolve_B = convolution(channels=shared)
        self.convolve_C = convolution(channels=shared)
        self.A_log = nn.Parameter(torch.empty(self.n_heads))
        self.dt_bias = nn.Parameter(torch.empty(self.n_heads))
        self.D = nn.Parameter(torch.empty(self.n_heads))
        self.norm = GatedNorm(context.child(d_model=inner), n_groups=n_groups, eps=eps)
        self.output = Linear(inner, d, bias=bias, role="output")
        self.scan = choose(backend, part="mamba2", torch=ssd, kernels="bakeoff_ssm.kernels:ssd", package="mamba_ssm")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """One group and two; a chunk that several documents share."""
        small = {"state_size": 8, "head_width": 8, "chunk": 16}
        return [small, small | {"n_groups": 2, "chunk": 5, "conv_width": 3, "bias": True, "conv_bias": False}]

    def reset_parameters(self) -> None:
        """Decay rates, step sizes and skips as published."""
        init.fill(self.A_log, lambda shape, generator: init.uniform(*self.A_range)(shape, generator).log())
        init.fill(self.dt_bias, init.step_sizes(*self.dt_range))
        init.fill(self.D, init.constant(1.0))

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads, and B and C of their groups, or of all where ranks do not divide these."""
        check_heads(self.n_heads, ranks)
        P = self.head_width
        plan = (
            columns(self, "z", "x", "convolve_x", "norm", unit=P) | columns(self, "dt") | rows(self, "output", unit=P)
        )
        if self.n_groups % ranks == 0:
            plan |= columns(self, "B", "C", "convolve_B", "convolve_C", unit=self.state_size)
        return plan | dict.fromkeys(("A_log", "dt_bias", "D"), Cut(0))

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank, and find their groups."""
        n, of_group = ranks.size(), self.n_heads // self.n_groups
        self.inner, self.n_heads = self.inner // n, self.n_heads // n
        if self.n_groups % n == 0:
            self.n_groups //= n
            return
        first = ranks.get_local_rank() * self.n_heads
        groups = tuple(head // of_group for head in range(first, first + self.n_heads))
        self.reads_groups = groups[:1] if len(set(groups)) == 1 else groups

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> Mamba2State:
        """Zeros; the convolutions' tails in `dtype`, the state in float32 or wider."""
        tails = (c.empty_state(batch, max_length, dtype, device) for c in self._convolutions())
        wide = torch.promote_types(dtype, torch.float32)
        ssm = torch.zeros(batch, self.n_heads, self.head_width, self.state_size, dtype=wide, device=device)
        return Mamba2State(*tails, ssm)

    def forward(self, x: Tensor, sequence: Sequence, state: Mamba2State | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        return self._mix(x, sequence, state, ShortConvolution.__call__, partial(self._scan, spans=sequence.spans))

    def naive(self, x: Tensor, sequence: Sequence, state: Mamba2State | None = None) -> Result:
        """The same by convolution and recurrence of one token after the other."""
        return self._mix(x, sequence, state, ShortConvolution.naive, ssd_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: Mamba2State | None, convolve: Any, scan: Any) -> Result:
        z, dt = self.z(x), self.dt(x)
        tails: Any = (None, None, None) if state is None else state[:3]
        projected = zip(self._convolutions(), (self.x(x), self.B(x), self.C(x)), tails, strict=True)
        mixed = [convolve(convolution, value, sequence, tail) for convolution, value, tail in projected]
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            dt = F.softplus(dt.to(wide) + self.dt_bias.to(wide))
            if sequence.real is not None:
                dt = dt * sequence.real[:, :, None].to(wide)
            values, B, C = (result.y.to(wide) for result in mixed)
            values = values.unflatten(2, (self.n_heads, self.head_width))
            B, C = (t.unflatten(2, (self.n_groups, self.state_size)) for t in (B, C))
            if self.reads_groups is not None:
                B, C = (torch.stack([t[:, :, group] for group in self.reads_groups], 2) for t in (B, C))
            given = (values, dt, -self.A_log.to(wide).exp(), B, C, self.D.to(wide))
            y, ssm = scan(*given, state=None if state is None else state.ssm, segments=sequence.segments)
            y = self.norm(y.flatten(2), z)
        after = None if state is None else Mamba2State(*(result.state for result in mixed), ssm)
        return Result(self.output(y), after)

    def _scan(
        self, *given: Tensor, state: Tensor | None, segments: Tensor | None, spans: Spans | None
    ) -> tuple[Tensor, Tensor | None]:
        if state is not None and given[0].shape[1] == 1:
            return ssd_step(*given, state, segments)
        return self.scan(*given, chunk=self.chunk, state=state, segments=segments, spans=spans)

    def _convolutions(self) -> tuple[ShortConvolution, ...]:
        return self.convolve_x, self.convolve_B, self.convolve_C

    def flops(self, queries: int, keys: int) -> int:
        """Projections, convolutions, and the recurrence's products: 2 P N per head each for its update and its readout.

        The chunked form does about `chunk (N G + P H)` multiply-adds a token more, half of them masked, in exchange
        for matrix products; that, decays and gates are not counted.
        """
        products = (self.z, self.x, self.B, self.C, self.dt, self.output)
        linear = sum(linear_flops(layer, queries) for layer in products)
        convolution = sum(c.flops(queries, keys) for c in self._convolutions())
        return linear + convolution + 4 * self.inner * self.state_size * queries


class GatedNorm(Part):
    """`w * rmsnorm(y * silu(z))` over each of `n_groups` groups of channels."""

    roles = {"weight": "vector"}  # noqa: RUF012
    over: DeviceMesh | None = None
    """Ranks that hold equally many of the channels each, where they do not divide the groups."""

    def __init__(self, context: LayerContext, *, n_groups: int = 1, eps: float = 1e-5):
        super().__init__(context)
        self.n_groups, self.eps = n_groups, eps
        self.weight = nn.Parameter(torch.empty(context.d_model))

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """Normalise `y` (..., D), float32 or wider, gated by `z` (..., D); the result has z's type."""
        gated = y * F.silu(z.to(y.dtype))
        if self.over is None:
            gated = gated.unflatten(-1, (self.n_groups, -1))
            normed = F.rms_norm(gated, gated.shape[-1:], eps=self.eps).flatten(-2)
        else:
            normed = self._normed_over(gated, self.over)
        return (normed * self.weight.to(y.dtype)).to(z.dtype)

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the groups of this rank, or remember who has the rest of them."""
        if self.n_groups % ranks.size():
            self.over = ranks
        else:
            self.n_groups //= ranks.size()

    def _normed_over(self, gated: Tensor, ranks: DeviceMesh) -> Tensor:
        """(..., D / ranks): squares are added up group by group, those of groups without channels here being zero."""
        here = gated.shape[-1]
        width, first = here * ranks.size() // self.n_groups, here * ranks.get_local_rank()
        cuts = [min(max(group * width - first, 0), here) for group in range(self.n_groups + 1)]
        sizes = [stop - start for start, stop in pairwise(cuts)]
        pieces = gated.split(sizes, -1)
        sums = summed_for_each(torch.stack([piece.square().sum(-1) for piece in pieces], -1), ranks.get_group())
        scales = torch.rsqrt(sums / width + self.eps).split(1, -1)
        return torch.cat([piece * scale for piece, scale in zip(pieces, scales, strict=True)], -1)


def _check(inner: int, head_width: int, n_groups: int, chunk: int) -> None:
    if inner % head_width:
        raise ValueError(f"inner width {inner} (expand x d_model) is no multiple of head_width {head_width}")
    if (inner // head_width) % n_groups:
        raise ValueError(f"{inner // head_width} heads cannot be shared out evenly among n_groups {n_groups}")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; a chunk has at least 1 token")
