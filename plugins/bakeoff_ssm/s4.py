"""S4 and S4D: linear state-space models, the same at every token, that are trained as convolutions."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import torch
from bakeoff.interfaces import Capabilities, LayerContext, Part, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.parts.linear import Linear, linear_flops
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_ssm.hippo import DIAGONALS, legs_low_rank
from bakeoff_ssm.linear_systems import System, convolve, kernel, scan, scan_naive, step
from bakeoff_ssm.transitions import Diagonal, LowRank


class S4State(NamedTuple):
    """One of each conjugate pair, real and imaginary parts: (B, D, N / 2, 2), float32 or wider."""

    s: Tensor


class DiscreteSystem(Part):
    """D continuous models `s' = A s + B u`, `y = 2 Re(C s)`, and the steps by which they are made discrete.

    A is `-exp(log_decay) + i frequency`, one of each conjugate pair, and perhaps low rank beside it.

    Parameters
    ----------
    state_size : N, twice the number of complex states.
    dt_min, dt_max : steps start log-uniform between them.
    """

    keep_float32 = ("log_dt", "log_decay", "frequency", "C")

    def __init__(self, context: LayerContext, *, state_size: int, dt_min: float, dt_max: float):
        super().__init__(context)
        if state_size < 2 or state_size % 2:
            raise ValueError(f"state_size is {state_size}; states come in conjugate pairs, so it is even, 2 at least")
        if not 0 < dt_min <= dt_max:
            raise ValueError(f"dt from {dt_min} to {dt_max} is no positive range")
        self.state_size, self.dt_range = state_size, (dt_min, dt_max)
        D, n = context.d_model, state_size // 2
        self.log_dt = nn.Parameter(torch.empty(D))
        self.log_decay = nn.Parameter(torch.empty(D, n))
        self.frequency = nn.Parameter(torch.empty(D, n))
        self.C = nn.Parameter(torch.empty(D, n, 2))

    roles = dict.fromkeys(("log_decay", "frequency", "C"), "vector")

    def reset_parameters(self) -> None:
        """Steps log-uniform, C a complex normal of variance 1; the rates are the subclass's."""
        low, high = self.dt_range
        init.fill(self.log_dt, init.uniform(math.log(low), math.log(high)))
        init.fill(self.C, init.normal(0.5**0.5))

    def start_from(self, rates: Tensor) -> None:
        """Fill A with `rates` (N / 2,) complex in every channel."""
        init.fill(self.log_decay, init.exactly((-rates.real).log().float()))
        init.fill(self.frequency, init.exactly(rates.imag.float()))

    @abstractmethod
    def discrete(self, wide: torch.dtype) -> System:
        """One token a step, computed in `wide`."""

    def _continuous(self, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """dt (D, 1), the rates and C (D, n) complex."""
        rates = torch.complex(-self.log_decay.to(wide).exp(), self.frequency.to(wide))
        return self.log_dt.to(wide).exp()[:, None], rates, torch.view_as_complex(self.C.to(wide))


class DiagonalSystem(DiscreteSystem):
    """A diagonal and B one, held from token to token: `exp(dt A)` and `A^-1 (exp(dt A) - 1)`."""

    def __init__(self, context: LayerContext, *, initial: str, state_size: int, dt_min: float, dt_max: float):
        super().__init__(context, state_size=state_size, dt_min=dt_min, dt_max=dt_max)
        if initial not in DIAGONALS:
            raise ValueError(f"initial is '{initial}'; it is one of {', '.join(DIAGONALS)}")
        self.initial = initial

    def reset_parameters(self) -> None:
        """Rates by name."""
        super().reset_parameters()
        self.start_from(DIAGONALS[self.initial](self.state_size))

    def discrete(self, wide: torch.dtype) -> System:
        """See `DiscreteSystem`."""
        dt, rates, C = self._continuous(wide)
        a = (dt * rates).exp()
        return System(Diagonal(a), (a - 1) / rates, C)


class LowRankSystem(DiscreteSystem):
    """A diagonal less `P P^*`, from HiPPO-LegS, made discrete by the bilinear rule."""

    keep_float32 = (*DiscreteSystem.keep_float32, "P", "B")
    roles = DiscreteSystem.roles | {"P": "vector", "B": "vector"}

    def __init__(self, context: LayerContext, *, state_size: int, dt_min: float, dt_max: float):
        super().__init__(context, state_size=state_size, dt_min=dt_min, dt_max=dt_max)
        self.P = nn.Parameter(torch.empty_like(self.C))
        self.B = nn.Parameter(torch.empty_like(self.C))

    def reset_parameters(self) -> None:
        """HiPPO-LegS in the basis that makes its normal part diagonal."""
        super().reset_parameters()
        rates, P, B = legs_low_rank(self.state_size)
        self.start_from(rates)
        init.fill(self.P, init.exactly(torch.view_as_real(P).float()))
        init.fill(self.B, init.exactly(torch.view_as_real(B).float()))

    def discrete(self, wide: torch.dtype) -> System:
        """See `DiscreteSystem`."""
        dt, rates, C = self._continuous(wide)
        P, B = (torch.view_as_complex(t.to(wide)) for t in (self.P, self.B))
        A = LowRank.bilinear(rates, P, dt)
        return System(A, A.solve(dt * B), C)


class LinearStateSpace(SequenceMixer):
    """What S4 and S4D share: the model, a skip, and mixing of channels.

        s' = A s + B u_t        y_t = 2 Re(C s_t) + D u_t        out_t = (W gelu(y_t) + b) * sigmoid(V gelu(y_t) + c)

    where each channel u of the input has a model of its own, made discrete with a step dt of its own. A row without
    documents, padding and state is convolved by Fourier transforms; any other is computed by chunks, which are exact
    where documents meet; a single token by the recurrence.
    """

    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True, exact_rows=False)
    keep_float32 = ("D",)

    def __init__(self, context: LayerContext, *, system: DiscreteSystem, gated: bool):
        super().__init__(context)
        d = context.d_model
        self.system = system
        self.D = nn.Parameter(torch.empty(d))
        self.output = Linear(d, d, bias=True, role="output")
        self.gate = Linear(d, d, bias=True, role="gate") if gated else None

    def reset_parameters(self) -> None:
        """Skips of one."""
        init.fill(self.D, init.constant(1.0))

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> S4State:
        """Zeros, in float32 or wider."""
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch, *self.system.C.shape)
        return S4State(torch.zeros(shape, dtype=wide, device=device))

    def forward(self, x: Tensor, sequence: Sequence, state: S4State | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        whole = sequence.real is None and sequence.segments is None and sequence.length > 0
        if state is None and whole:
            return self._mix(x, sequence, state, _by_transforms)
        if state is not None and sequence.length == 1 and sequence.real is None:
            return self._mix(x, sequence, state, step)
        return self._mix(x, sequence, state, scan)

    def naive(self, x: Tensor, sequence: Sequence, state: S4State | None = None) -> Result:
        """The same by the recurrence, one token after the other."""
        return self._mix(x, sequence, state, scan_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: S4State | None, compute: Any) -> Result:
        wide = torch.promote_types(x.dtype, torch.float32)
        held = None if state is None else torch.view_as_complex(state.s)
        with torch.autocast(x.device.type, enabled=False):
            u, system = x.to(wide), self.system.discrete(wide)
            if sequence.real is None:
                y, after = compute(u, system, state=held, segments=sequence.segments)
            else:
                y, after = _of_real_tokens(compute, u, system, held, sequence.segments, sequence.real)
            y = F.gelu(torch.addcmul(y, u, self.D.to(wide))).to(x.dtype)
        out = self.output(y) if self.gate is None else self.output(y) * torch.sigmoid(self.gate(y))
        return Result(out, None if after is None else S4State(torch.view_as_real(after)))

    def flops(self, queries: int, keys: int) -> int:
        """Channel mixing, and the recurrence's products: 2 N per channel each for update and readout.

        The transforms of training are not counted.
        """
        linear = linear_flops(self.output, queries) + linear_flops(self.gate, queries)
        return linear + 4 * self.D.numel() * self.system.state_size * queries


def _by_transforms(u: Tensor, system: System, *, state: None, segments: None) -> tuple[Tensor, None]:
    return convolve(u, kernel(system, u.shape[1])), None


def _of_real_tokens(
    compute: Any, u: Tensor, system: System, state: Tensor | None, segments: Tensor | None, real: Tensor
) -> tuple[Tensor, Tensor | None]:
    """`compute` on rows whose real tokens have been moved to the left, as a model that decays knows no padding."""
    order = torch.argsort((~real).long(), dim=1, stable=True)
    place = (real.long().cumsum(1) - 1).clamp_min(0)
    moved = u.gather(1, order[..., None].expand_as(u))
    segments = None if segments is None else segments.gather(1, order)
    y, after = compute(moved, system, state=state, segments=segments, lengths=real.sum(1))
    return y.gather(1, place[..., None].expand_as(y)), after


class S4(LinearStateSpace):
    """A linear state-space model that starts from HiPPO-LegS and so remembers long.

    The equations are those of `LinearStateSpace`. A is diagonal and of low rank, made discrete by the bilinear rule;
    or its diagonal part alone (DSS, S4D).

    Parameters
    ----------
    state_size : N of each channel, even.
    form : "low_rank" (DPLR) or "diagonal".
    dt_min, dt_max : steps start log-uniform between them.
    gated : whether the mixing of channels is gated (GLU), or a product alone.
    """

    reference = Reference(
        "Gu, Goel and Ré",
        2021,
        "Efficiently Modeling Long Sequences with Structured State Spaces",
        "https://arxiv.org/abs/2111.00396",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        state_size: int = 64,
        form: Literal["low_rank", "diagonal"] = "low_rank",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        gated: bool = True,
    ):
        sizes = {"state_size": state_size, "dt_min": dt_min, "dt_max": dt_max}
        if form not in ("low_rank", "diagonal"):
            raise ValueError(f"form is '{form}'; it is 'low_rank' or 'diagonal'")
        system = (
            LowRankSystem(context, **sizes) if form == "low_rank" else DiagonalSystem(context, initial="legs", **sizes)
        )
        super().__init__(context, system=system, gated=gated)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both forms."""
        return [{"state_size": 6}, {"state_size": 4, "form": "diagonal", "gated": False}]


class S4D(LinearStateSpace):
    """S4 with a diagonal A and B = 1, held from token to token.

    The equations are those of `LinearStateSpace`; the kernel is `2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(l dt A_n)`.

    Parameters
    ----------
    state_size : N of each channel, even; it has N / 2 complex states.
    initial : A to start from: "lin", "inv" or "legs".
    dt_min, dt_max : steps start log-uniform between them.
    gated : whether the mixing of channels is gated (GLU), or a product alone.
    """

    reference = Reference(
        "Gu, Gupta, Goel and Ré",
        2022,
        "On the Parameterization and Initialization of Diagonal State Space Models",
        "https://arxiv.org/abs/2206.11893",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        state_size: int = 64,
        initial: Literal["lin", "inv", "legs"] = "lin",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        gated: bool = True,
    ):
        system = DiagonalSystem(context, initial=initial, state_size=state_size, dt_min=dt_min, dt_max=dt_max)
        super().__init__(context, system=system, gated=gated)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A gate, and none."""
        return [{"state_size": 4}, {"state_size": 2, "initial": "inv", "gated": False}]
