"""Router `hash_router`: a fixed table."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import LayerContext, Reference, Router, Routing, Sequence, init
from torch import Tensor

from bakeoff_moe.claims import BY_TOKEN
from bakeoff_moe.scores import check_k


class HashRouter(Router):
    """The experts of a token are those that a random table has for its id, each with weight 1 / k.

    Nothing is learnt. Every expert has equally many ids, as far as they divide; layers have tables of their own, which
    stand in the model's state.

    Parameters
    ----------
    k : experts a token, all different.
    """

    reference = Reference(
        "Roller et al.", 2021, "Hash Layers For Large Sparse Models", "https://arxiv.org/abs/2106.04426"
    )
    capabilities = BY_TOKEN
    gives = ()
    table: Tensor

    def __init__(self, context: LayerContext, *, k: int = 1):
        super().__init__(context)
        check_k(k, self.n_experts)
        self.k = k
        self.register_buffer("table", torch.empty(context.vocab_size, k, dtype=torch.long))

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """One expert, and several."""
        return [{}, {"k": 3}]

    def reset_parameters(self) -> None:
        """Ids in random order, one expert after the other in a random order that is drawn anew for every E ids."""
        init.fill(self.table, self._drawn)

    def _drawn(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        ids, E = torch.arange(shape[0]), self.n_experts
        orders = torch.rand(-(-shape[0] // E), E, generator=generator).argsort(1)
        place = (ids[:, None] + torch.arange(shape[1])) % E
        drawn = orders[ids // E].gather(1, place)
        return drawn[torch.randperm(shape[0], generator=generator)]

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        """By ids alone; raises `CapabilityError` where there are none, `ValueError` for one beyond the table."""
        tokens = sequence.tokens
        if tokens is None:
            raise CapabilityError(
                "hash_router chooses experts by token ids, and this sequence has none; "
                "use a router that scores vectors, such as top_k"
            )
        try:
            experts = self.table.index_select(0, tokens.flatten())
        except IndexError as error:
            most, least = int(tokens.max()), int(tokens.min())
            raise ValueError(
                f"hash_router: token ids go from {least} to {most}; its table has those from 0 to {len(self.table) - 1}"
            ) from error
        weights = torch.full_like(experts, 1 / self.k, dtype=torch.float32)
        return Routing(experts, weights)

    def pairs(self, tokens: int) -> int:
        """k a token."""
        return self.k * tokens

    def flops(self, queries: int, keys: int) -> int:
        """A look-up is none."""
        return 0
