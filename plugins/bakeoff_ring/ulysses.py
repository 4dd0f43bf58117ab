"""Attention of some heads of all tokens on each rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bakeoff.interfaces import LayerContext, Need, Reference, Sequence
from bakeoff.parts.attention.auto import Auto
from bakeoff.parts.attention.functional import Scoring
from bakeoff.parts.attention.sdpa import SDPA
from torch import Tensor

from bakeoff_ring.computing import alike
from bakeoff_ring.exchange import to_heads, to_tokens


@dataclass(frozen=True)
class OfWhole(Need):
    """A need of the whole sequence, also where ranks share it out."""

    need: Need

    def derive(self, sequence: Sequence) -> Any:
        """What the need is."""
        return self.need.derive(sequence if sequence.spans is None else sequence.spans.whole)


class Ulysses(SDPA):
    """Ranks that share out the tokens of a sequence exchange them for heads, and back.

    In between, each rank has all tokens of its share of the heads, and does with them what `auto` does.

    `check_ranks` raises `ValueError` unless the ranks divide the key-value heads, and so the query heads.
    """

    reference = Reference(
        "Jacobs et al.",
        2023,
        "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence Transformer Models",
        "https://arxiv.org/abs/2309.14509",
    )
    capabilities = replace(SDPA.capabilities, context_parallel=True)

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.heads = context.n_kv_heads or context.n_heads
        self.keys = {rolling: OfWhole(need) for rolling, need in Auto(context).keys.items()}

    def check_ranks(self, ranks: int, *, tensor: int = 1) -> None:
        """Each rank must get as many key-value heads, after `tensor` ranks have shared them out."""
        if self.heads is None or self.heads // tensor % ranks == 0:
            return
        held = self.heads // tensor
        told = f"{self.heads}" if tensor == 1 else f"{self.heads}, of which each of {tensor} tensor ranks has {held}"
        possible = ", ".join(str(n) for n in range(1, held + 1) if held % n == 0)
        raise ValueError(
            f"ulysses shares out the heads over {ranks} ranks, and n_kv_heads is {told}; the ranks must divide them: "
            f"{possible} would do, or op ring, which takes any number"
        )

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
        """`(out, log-sum-exp)`, the second None where ranks share out the sequence; see `AttentionOp.forward`."""
        seen, spans = sequence[self.keys[rolling]], sequence.spans
        if spans is None:
            return seen.attend(q, k, v, Scoring(scale, bias, self.soft_cap, sinks))
        q, k, v = (to_heads(x, spans) for x in alike(q, k, v))
        if bias is not None:
            bias = to_heads(bias.transpose(1, 2), spans).transpose(1, 2)
        if sinks is not None:
            sinks = sinks.chunk(spans.ranks)[spans.rank]
        out, _ = seen.attend(q, k, v, Scoring(scale, bias, self.soft_cap, sinks))
        return to_tokens(out, spans), None
