"""Attention over a ring of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from bakeoff.interfaces import LayerContext, Need, Reference, Sequence
from bakeoff.parts.attention.auto import Auto
from bakeoff.parts.attention.functional import Scoring
from bakeoff.parts.attention.sdpa import SDPA
from torch import Tensor

from bakeoff_ring.attention import attend_around
from bakeoff_ring.computing import alike
from bakeoff_ring.sight import Steps


@dataclass(frozen=True)
class Unshared(Need):
    """A need of who has the whole sequence; None where ranks share it out."""

    need: Need

    def derive(self, sequence: Sequence) -> Any:
        """What the need is."""
        return None if sequence.spans is not None else self.need.derive(sequence)


class Ring(SDPA):
    """Keys and values go round the ranks that share out a sequence, each block under way while another is computed.

    Each rank's queries stay where they are. What a block cannot show, by causality, documents or a window, is not
    computed, and blocks that no rank looks at are not sent. Parts are merged by the log-sum-exp, in float32 at least;
    backward sends the blocks round again, with float32 gradients. Where nothing is shared out it is `auto`.

    With spans in the order "zigzag" all ranks have equally much to compute under causal visibility (after Brandon et
    al. 2023, "Striped Attention", arXiv:2311.09431).
    """

    reference = Reference(
        "Liu, Zaharia and Abbeel", 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", "https://arxiv.org/abs/2310.01889"
    )  # fmt: skip
    capabilities = replace(SDPA.capabilities, context_parallel=True)

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.keys = {rolling: Unshared(need) for rolling, need in Auto(context).keys.items()}
        self.steps = Steps(context.window)

    def needs(self) -> tuple[Need, ...]:
        """What queries see where nothing is shared out, and else by steps of the ring."""
        return (*self.keys.values(), self.steps)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sequence: Sequence,
        *,
        rolling: bool = False,
        scale: float | None = None,
        bias: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`(out, log-sum-exp)`; see `AttentionOp.forward`."""
        scoring = Scoring(scale, bias, self.soft_cap, sinks)
        if sequence.spans is None:
            return sequence[self.keys[rolling]].attend(q, k, v, scoring)
        return _around(*alike(q, k, v), sequence[self.steps], sequence.spans, scoring)


_around = torch.compiler.disable(attend_around)
