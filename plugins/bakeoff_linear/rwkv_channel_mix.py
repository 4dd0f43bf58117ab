"""RWKV's channel mixing: a feed-forward that sees the token before."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.interfaces import Capabilities, Cut, FeedForward, LayerContext, Reference, Result, Sequence, init
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from torch import Tensor, nn

from bakeoff_linear.token_shift import mixed, token_before


class RWKVChannelMix(FeedForward):
    """`relu((x + m (x' - x)) W_up)^2 W_down`, with x' the token before x and m learned, one number a channel.

    The state is the last token, (B, 1, D).

    Parameters
    ----------
    width : channels inside (null: 4 D).
    """

    reference = Reference(
        "Peng et al.",
        2025,
        "RWKV-7 'Goose' with Expressive Dynamic State Evolution",
        "https://arxiv.org/abs/2503.14456",
    )
    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )
    stateless = False

    def __init__(self, context: LayerContext, *, width: int | None = None):
        super().__init__(context)
        d = context.d_model
        self.width = 4 * d if width is None else width
        if self.width < 1:
            raise ValueError(f"width is {width}; it must be at least 1")
        self.place = (context.layer, context.depth)
        self.mix = nn.Parameter(torch.empty(d))
        self.up = Linear(d, self.width)
        self.down = Linear(self.width, d, role="output")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is."""
        return [{"width": 24}]

    def reset_parameters(self) -> None:
        """As published: m by channel and layer, W_up uniform, W_down zero."""
        d, (layer, depth) = self.mix.shape[0], self.place
        channel = torch.arange(d, dtype=torch.float64) / d
        init.fill(self.mix, init.exactly((1 - channel ** ((1 - layer / depth) ** 4)).float()))
        init.fill(self.up.weight, init.uniform(-0.5 * d**-0.5, 0.5 * d**-0.5))
        init.fill(self.down.weight, init.constant(0.0))

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> Tensor:
        """No token: zeros."""
        return torch.zeros(batch, 1, self.mix.shape[0], dtype=dtype, device=device)

    def forward(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        before, after = token_before(x, sequence, state)
        (x,) = mixed(x, before, [self.mix])
        inner = torch.relu(self.up(x))
        return Result(self.down(inner.square()), after)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the inner channels."""
        return columns(self, "up") | rows(self, "down")

    def flops(self, queries: int, keys: int) -> int:
        """Both products."""
        return linear_flops(self.up, queries) + linear_flops(self.down, queries)
