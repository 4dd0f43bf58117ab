"""What routers have in common that spread the tokens of a whole batch evenly in training."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import torch
from bakeoff.interfaces import LayerContext, Sequence
from torch import Tensor

from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.dispatch import has_values
from bakeoff_moe.scores import ScoredRouter
from bakeoff_moe.whole_rows import chosen_of_all


class BatchBalancedRouter(ScoredRouter):
    """In training all real tokens of a batch share the experts out; in evaluation each takes its best k.

    A batch is all tokens of the rows that a rank reads. In training a token's experts thus depend on all others of the
    batch, later ones too; its weights do not.
    """

    capabilities = replace(
        BY_TOKEN, lost_in_training=frozenset({"causal", "row_local", "documents", "padding", "state", "bidirectional"})
    )

    def __init__(self, context: LayerContext, *, k: int = 1, bias: bool = False, jitter: float = 0.0):
        super().__init__(context, bias=bias, jitter=jitter)
        if not 1 <= k < self.n_experts:
            raise ValueError(
                f"k is {k}, n_experts {self.n_experts}; experts are shared out where 1 <= k < n_experts: where a "
                "token takes all of them there is nothing to balance"
            )
        self.k = k

    @abstractmethod
    def shared_out(self, scores: Tensor) -> Tensor:
        """(n, E) scores of real tokens, without gradients -> (n, k) long, their experts."""

    def chosen(self, logits: Tensor, sequence: Sequence) -> Tensor:
        """(N, E) -> (N, k) long; E for padding, in training."""
        logits = logits.detach()
        if not self.training or not has_values(logits):
            return logits.topk(self.k).indices
        return chosen_of_all(logits, sequence, self._of_batch)

    def _of_batch(self, logits: Tensor, sequence: Sequence) -> Tensor:
        if sequence.real is None:
            return self.shared_out(logits)
        real = sequence.real.flatten()
        experts = torch.full((len(logits), self.k), self.n_experts, device=logits.device)
        experts[real] = self.shared_out(logits[real])
        return experts

    def pairs(self, tokens: int) -> int:
        """k a token."""
        return self.k * tokens


def weights_of(values: Tensor, experts: Tensor) -> Tensor:
    """(N, E) values at (N, k) experts; of choices not taken, any."""
    return values.gather(1, experts.clamp_max(values.shape[1] - 1))
