"""Attention with linear biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.parts.positions.relative import relative_positions

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def slopes(n_heads: int) -> list[float]:
    """Slope of each head: 2^(-8/n), 2^(-16/n), …, 2^-8 for n heads, a power of two.

    Else those of the next lower power of two p, then every other one of 2 p heads.
    """
    power = 1 << (n_heads.bit_length() - 1)
    first = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4 * h / power) for h in range(1, 2 * (n_heads - power), 2)]
    return first + between


@dataclass(frozen=True)
class LinearBias(Need):
    """`-slope * distance`, (B or 1, H, T, S), float32; window and rolling say which keys, as in `held_keys`."""

    n_heads: int
    window: int | None
    rolling: bool
    held: range
    """Which of the heads are here."""

    def derive(self, sequence: Sequence) -> Tensor | None:
        """None where no rolling cache can be."""
        ahead = relative_positions(sequence, self.window, self.rolling)
        if ahead is None:
            return None
        slope = torch.tensor(slopes(self.n_heads)[self.held.start : self.held.stop], device=ahead.device)
        return -slope[:, None, None] * ahead.abs().float()[:, None]


class ALiBi(PositionalEncoding):
    """Adds `-slope * distance` to the attention logits; each head has a fixed slope.

    Distances are those of positions, so that a packed document begins anew, and symmetric where visibility is.
    """

    reference = Reference(
        "Press, Smith and Lewis",
        2022,
        "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
        "https://arxiv.org/abs/2108.12409",
    )
    hooks: ClassVar[frozenset[str]] = frozenset({"bias"})
    capabilities = Capabilities(tensor_parallel=True, context_parallel=True)
    relative: ClassVar[bool] = True

    def __init__(self, context: LayerContext):
        super().__init__(context)
        if context.n_heads is None:
            raise UserError("ALiBi adds to attention logits: give it to a mixer, as in mixer: {position: {use: alibi}}")
        self.n_heads, self.window = context.n_heads, context.window
        self._hold(range(context.n_heads))

    def _hold(self, heads: range) -> None:
        kinds = (False,) if self.window is None else (False, True)
        self.biases = {rolling: LinearBias(self.n_heads, self.window, rolling, heads) for rolling in kinds}

    def narrow(self, ranks: DeviceMesh) -> None:
        """Keep the slopes of this rank's heads."""
        each = self.n_heads // ranks.size()
        first = ranks.get_local_rank() * each
        self._hold(range(first, first + each))

    def needs(self) -> tuple[Need, ...]:
        """The bias over the keys of a growing cache and, with a window, of a rolling one."""
        return tuple(self.biases.values())

    def bias(self, sequence: Sequence, rolling: bool = False) -> Tensor | None:
        """(B or 1, H, T, S), float32."""
        return sequence[self.biases[rolling]]
