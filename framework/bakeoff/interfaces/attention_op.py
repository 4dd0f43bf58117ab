"""Kind `attention_op`: softmax attention over given queries, keys and values."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.sequence import Sequence


class AttentionOp(Part):
    """How attention is computed; what is projected, rotated and cached stays the mixer's.

    Built with a context that names `n_heads`, `n_kv_heads`, `head_width`, `window` and `soft_cap`.
    """

    kind = "attention_op"
    replaceable: ClassVar[bool] = False
    """Where ranks share out rows, the op that the mesh names stands in its place, which computes the same."""

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.context = context

    def check_ranks(self, ranks: int, *, tensor: int = 1) -> None:
        """Raise `ValueError` with both numbers if so many `ranks` cannot share out the sequence.

        Asked of ops that claim `context_parallel`; `tensor` ranks share out the heads before.
        """

    @abstractmethod
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
        """Attention of `q` (B, T, H, N) over `k`, `v` (B, S, K, N): `(out, log-sum-exp)`.

        `rolling`: keys are those of a rolling cache of `window` slots followed by the call's own (see `VisibleKeys`);
        else they are `sequence.entries()`, in order. `bias` is added to the logits, (B or 1, H, T, S); `sinks` (H,) are
        logits of a key whose value is zero. `out` is (B, T, H, N); the log-sum-exp (B, H, T), float32, or None where
        the backend does not give it. A query that sees no key gives zeros.

        An op that claims `context_parallel` may be given a sequence that ranks share out (`sequence.spans`): all three
        are of this rank's tokens, and the S keys of `bias` are `sequence.entries()`, those of the whole.
        """
