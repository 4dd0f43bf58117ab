"""The head over a vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bakeoff.interfaces.component import Capabilities
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.cut import Cut, shares_of
from bakeoff.interfaces.head import Head
from bakeoff.parts.collectives import joined
from bakeoff.parts.fused_loss import CHUNK, Slice, capped, fused_loss
from bakeoff.parts.linear import Linear, linear_flops

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Vocabulary(Head):
    """Logits `scale h W^T (+ b)`, or their loss without holding them all.

    Parameters
    ----------
    scale : multiplies the logits, before the bias (Cohere: 1/16).
    soft_cap : logits are `cap * tanh(logits / cap)` (Gemma 2, arXiv:2408.00118).
    bias : add a learned bias (V,).
    """

    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, bidirectional=True, tensor_parallel=True
    )
    part: Slice | None = None
    """Which ids are this rank's, where ranks share them out."""

    def __init__(self, context: LayerContext, *, scale: float = 1.0, soft_cap: float | None = None, bias: bool = False):
        super().__init__(context)
        if scale <= 0:
            raise ValueError(f"scale is {scale}; it must be positive")
        if soft_cap is not None and soft_cap <= 0:
            raise ValueError(f"soft_cap is {soft_cap}; it must be positive, or null for none")
        self.scale, self.soft_cap = scale, soft_cap
        self.projection = Linear(context.d_model, context.vocab_size, bias=bias, role="readout")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with every option."""
        return [{}, {"scale": 0.5, "soft_cap": 5.0, "bias": True}]

    def tie(self, embedding: nn.Parameter) -> None:
        """Share the input embedding as W."""
        self.projection.weight = embedding

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has the rows of some ids; the first ranks one more where they do not divide."""
        bias = {} if self.projection.bias is None else {"projection.bias": Cut(0, uneven=True)}
        return {"projection.weight": Cut(0, uneven=True), **bias}

    def narrow(self, ranks: DeviceMesh) -> None:
        """Note which ids are this rank's."""
        share = shares_of(self.projection)["weight"]
        self.part = Slice(share.ranges[0][0], share.size, ranks.get_group())

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        reduce: str = "sum",
        *,
        z_loss: float = 0.0,
        label_smoothing: float = 0.0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (B, T, V) of `hidden` (B, T, D); with `targets` (B, T) their loss.

        `reduce` "sum": `(penalised sum, sum of nats)`, weighted by `weights` (B, T). "none": nats of each token (B, T).
        """
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if targets is None:
            return self._logits(hidden)
        if reduce == "none":
            return self._nats(hidden, targets)
        if reduce != "sum":
            raise ValueError(f"reduce is '{reduce}'; it is 'sum' or 'none'")
        flat = torch.ones_like(targets, dtype=torch.float32) if weights is None else weights
        return fused_loss(
            hidden.flatten(0, 1),
            self.projection.weight,
            self.projection.bias,
            targets.flatten(),
            flat.flatten(),
            soft_cap=self.soft_cap,
            z_loss=z_loss,
            label_smoothing=label_smoothing,
            part=self.part,
        )

    def flops(self, queries: int, keys: int) -> int:
        """The projection, whether its matrix is shared with the embedding or not."""
        return linear_flops(self.projection, queries)

    def _nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        h, y = hidden.flatten(0, 1), targets.flatten()
        pieces = []
        for start in range(0, len(y), CHUNK):
            logits = self._logits(h[start : start + CHUNK])
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            pieces.append(logits.logsumexp(-1) - logits.gather(-1, y[start : start + CHUNK, None])[:, 0])
        return torch.cat(pieces).view_as(targets)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = capped(self.projection(hidden), self.soft_cap)
        return logits if self.part is None else joined(logits, -1, self.part.vocab_size, self.part.group)
