"""Continuous state-space models, one for each channel, and their two ways into discrete time."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from bakeoff.interfaces import Cut, LayerContext, Part, init
from torch import Tensor, nn

from bakeoff_ssm.hippo import DIAGONALS, legs_low_rank
from bakeoff_ssm.linear_systems import System
from bakeoff_ssm.transitions import Diagonal, LowRank


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

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has the models of some of the channels."""
        return {name: Cut(0) for name, _ in self.named_parameters(recurse=False)}

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
