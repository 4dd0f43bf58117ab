"""Attention by torch's fused kernel, with a mask where one is needed."""

from __future__ import annotations

from torch import Tensor

from bakeoff.interfaces.attention_op import AttentionOp
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.parts.attention.functional import Scoring
from bakeoff.parts.attention.masks import VisibleKeys


class SDPA(AttentionOp):
    """`torch.nn.functional.scaled_dot_product_attention`; a window is a mask, so it saves memory in decoding only.

    A soft cap is computed by explicit matrix products instead, in float32 at least; so are sinks, but on a CPU.
    """

    reference = Reference(
        "Dao et al.", 2022, "FlashAttention: Fast and Memory-Efficient Exact Attention", "https://arxiv.org/abs/2205.14135"
    )  # fmt: skip
    capabilities = Capabilities(
        documents=True,
        padding=True,
        state=True,
        constant_state=True,
        bidirectional=True,
        compile=True,
        tensor_parallel=True,
    )

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.soft_cap = context.soft_cap
        self.keys: dict[bool, Need] = {False: VisibleKeys(context.window)}
        if context.window is not None:
            self.keys[True] = VisibleKeys(context.window, rolling=True)

    def needs(self) -> tuple[Need, ...]:
        """What the queries see of a growing cache and, with a window, of a rolling one."""
        return tuple(self.keys.values())

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
        seen = sequence[self.keys[rolling]]
        return seen.attend(q, k, v, Scoring(scale, bias, self.soft_cap, sinks))
