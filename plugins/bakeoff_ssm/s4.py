"""S4 and S4D: linear state-space models, the same at every token, that are trained as convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from bakeoff.interfaces import Capabilities, Cut, LayerContext, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.parts.collectives import own_share, summed_for_each
from bakeoff.parts.linear import Linear, linear_flops, rows
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_ssm.discrete_systems import DiagonalSystem, DiscreteSystem, LowRankSystem
from bakeoff_ssm.linear_systems import System, convolve, kernel, of_real_tokens, scan, scan_naive, step
from bakeoff_ssm.systems_along import along

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class S4State(NamedTuple):
    """One of each conjugate pair, real and imaginary parts: (B, D, N / 2, 2), float32 or wider."""

    s: Tensor


class LinearStateSpace(SequenceMixer):
    """What S4 and S4D share: the model, a skip, and mixing of channels.

        s' = A s + B u_t        y_t = 2 Re(C s_t) + D u_t        out_t = (W gelu(y_t) + b) * sigmoid(V gelu(y_t) + c)

    where each channel u of the input has a model of its own, made discrete with a step dt of its own. A row without
    documents, padding and state is convolved by Fourier transforms; any other is computed by chunks, which are exact
    where documents meet; a single token by the recurrence.
    """

    capabilities = Capabilities(
        documents=True,
        padding=True,
        state=True,
        constant_state=True,
        exact_rows=False,
        tensor_parallel=True,
        context_parallel=True,
    )
    keep_float32 = ("D",)
    over: DeviceMesh | None = None
    """Ranks that share out the channels of the models; their mixing is a sum over those of all."""

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

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has the models of some of the channels, and what the mixing makes of them."""
        return {"D": Cut(0)} | rows(self, "output", "gate")

    def narrow(self, ranks: DeviceMesh) -> None:
        """Remember who has the other channels."""
        self.over = ranks

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> S4State:
        """Zeros, in float32 or wider."""
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch, *self.system.C.shape)
        return S4State(torch.zeros(shape, dtype=wide, device=device))

    def forward(self, x: Tensor, sequence: Sequence, state: S4State | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        if sequence.spans is not None:
            return self._mix(x, sequence, state, along)
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
            own = x if self.over is None else own_share(x, 2, self.over.get_group())
            u, system = own.to(wide), self.system.discrete(wide)
            if sequence.spans is not None:
                y, after = compute(u, system, sequence.spans), None
            elif sequence.real is None:
                y, after = compute(u, system, state=held, segments=sequence.segments)
            else:
                y, after = of_real_tokens(compute, u, system, held, sequence.segments, sequence.real)
            y = F.gelu(torch.addcmul(y, u, self.D.to(wide))).to(x.dtype)
        return Result(self._mixed(y), None if after is None else S4State(torch.view_as_real(after)))

    def _mixed(self, y: Tensor) -> Tensor:
        if self.gate is None:
            return self.output(y)
        gate = self.gate(y)
        if self.over is not None:
            gate = summed_for_each(gate, self.over.get_group())
        return self.output(y) * torch.sigmoid(gate)

    def flops(self, queries: int, keys: int) -> int:
        """Channel mixing, and the recurrence's products: 2 N per channel each for update and readout.

        The transforms of training are not counted.
        """
        linear = linear_flops(self.output, queries) + linear_flops(self.gate, queries)
        return linear + 4 * self.D.numel() * self.system.state_size * queries


def _by_transforms(u: Tensor, system: System, *, state: None, segments: None) -> tuple[Tensor, None]:
    return convolve(u, kernel(system, u.shape[1])), None


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
