"""The mixture of experts: one feed-forward for every router and every kind of expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import (
    Balance,
    Capabilities,
    FeedForward,
    LayerContext,
    Reference,
    Result,
    Router,
    Routing,
    Sequence,
    Slots,
)
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.linear import Linear, linear_flops
from torch import Tensor

from bakeoff_moe.dispatch import combine, gather, sort_by_expert
from bakeoff_moe.experts import Experts, FeedForwardFactory
from bakeoff_moe.load import finished, load_sums
from bakeoff_moe.slots import soft_mixture, soft_mixture_naive
from bakeoff_moe.top_k import TopK


class MixtureOfExperts(FeedForward):
    """`y = sum over chosen e of g_e(x) E_e(x)`, plus a shared expert that every token passes.

    The router chooses the experts of each token and their weights g; experts that are not chosen are not computed.
    Tokens that no expert takes, because it had no room, get zeros: in a block, they pass through the residual
    unchanged. Padding is not routed.

    Parameters
    ----------
    n_experts : E.
    expert : the feed-forward that is there E times; one that claims `token_local`.
    router : which experts a token goes to.
    shared : a feed-forward that every token passes; several shared experts are one of their joint width.
    shared_gate : the shared expert's output is multiplied by sigmoid(x w) (Qwen 2024, arXiv:2407.10671).
    balance : losses over the choices, each with its coefficient.
    freeze : what fine-tuning leaves as it is: the router, or the experts.
    """

    reference = Reference(
        "Shazeer et al.",
        2017,
        "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer",
        "https://arxiv.org/abs/1701.06538",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        n_experts: int,
        expert: FeedForwardFactory = GatedMLP,
        router: Callable[[LayerContext], Router] = TopK,
        shared: FeedForwardFactory | None = None,
        shared_gate: bool = False,
        balance: list[Balance] | None = None,
        freeze: Literal["router", "experts"] | None = None,
    ):
        super().__init__(context)
        if n_experts < 1:
            raise ValueError(f"n_experts is {n_experts}; it must be at least 1")
        if shared_gate and shared is None:
            raise ValueError(
                "shared_gate is true, but there is no shared expert to gate; set shared, or shared_gate: false"
            )
        self.router = router(context.child(n_experts=n_experts))
        self.experts = Experts(context, n_experts=n_experts, expert=expert, active=self.router.active())
        self.shared = None if shared is None else shared(context)
        self.shared_gate = Linear(context.d_model, 1, role="gate") if shared_gate else None
        self.balance = self._checked(balance or [])
        if freeze is not None:
            (self.router if freeze == "router" else self.experts).requires_grad_(False)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Alone, and with everything."""
        balance = [{"use": "load_balance", "coefficient": 0.01}, {"use": "router_z_loss", "coefficient": 1e-3}]
        expert, shared = {"use": "mlp", "width": 16, "bias": True}, {"use": "gated_mlp", "width": 16}
        more = {"shared": shared, "shared_gate": True, "balance": balance}
        return [
            {"n_experts": 4, "expert": {"use": "gated_mlp", "width": 16}},
            {"n_experts": 4, "expert": expert, **more},
        ]

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What router, experts and the shared expert can do; rows are sorted, so that they are not computed alone."""
        parts = [self.router.capabilities, replace(self.experts.claims, compile=False, token_local=False)]
        if self.shared is not None:
            parts.append(replace(self.shared.capabilities, token_local=False))
        first, *others = parts
        met = replace(first.meet(*others), exact_rows=False)
        if all(balance.additive for balance in self.balance):
            return met
        return replace(met, lost_in_training=met.lost_in_training | {"state"})

    def empty_state(self, batch: int, max_length: int, dtype: Any = None, device: Any = None) -> Any:
        """The empty nest, where the router sees tokens one by one."""
        if not self.router.capabilities.state:
            name = type(self.router).__name__
            raise CapabilityError(
                f"{name} routes whole sequences and cannot decode token by token; "
                "use a router whose capabilities claim `state`, such as top_k"
            )
        return super().empty_state(batch, max_length, dtype, device)

    @property
    def n_experts(self) -> int:
        """E."""
        return self.experts.n_experts

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        routing = self.router(x, sequence)
        if isinstance(routing, Slots):
            return Result(self._with_shared(soft_mixture(x, routing, self.experts, sequence), x, sequence), state)
        real = None if sequence.real is None else sequence.real.flatten()
        routing = _without_padding(routing, real, self.n_experts)
        on_host = self.experts.counted(x)
        order = sort_by_expert(routing.experts, self.n_experts, on_host=on_host, compact=self.router.sparse)
        rows = self.experts(gather(x.flatten(0, 1), order), order.groups, sequence)
        y = combine(rows, routing.weights, order, self.n_experts, routing.experts).view_as(x)
        aux = self._sums(routing, real, sequence) if self.training else {}
        return Result(self._with_shared(y, x, sequence), state, aux, routing.memory)

    def naive(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """Token by token, choice by choice."""
        routing = self.router(x, sequence)
        if isinstance(routing, Slots):
            return Result(self._with_shared(soft_mixture_naive(x, routing, self.experts, sequence), x, sequence), state)
        real = None if sequence.real is None else sequence.real.flatten()
        routing = _without_padding(routing, real, self.n_experts)
        tokens = x.flatten(0, 1)
        ys = []
        for token, experts, weights in zip(tokens, routing.experts.tolist(), routing.weights, strict=True):
            y = torch.zeros_like(token)
            for e, weight in zip(experts, weights, strict=True):
                if e < self.n_experts:
                    y = y + weight.to(x.dtype) * self.experts.alone(e, token[None], sequence)[0]
            ys.append(y)
        return Result(self._with_shared(torch.stack(ys).view_as(x), x, sequence), state)

    def _checked(self, balance: list[Balance]) -> list[Balance]:
        """The balances, if each is there once, fits the experts, and finds what it reads in what the router gives."""
        router = type(self.router).__name__
        for one in balance:
            one.check(self.n_experts)
            if one.reads not in self.router.gives:
                raise ValueError(f"balance {one.name} reads {one.reads}, which {router} does not give; leave it out")
            if [other.name for other in balance].count(one.name) > 1:
                raise ValueError(f"balance {one.name} stands in the list more than once")
        return balance

    def _sums(self, routing: Routing, real: Tensor | None, sequence: Sequence) -> dict[str, Tensor]:
        """What is added up over a step: choices, and what balances and router ask for."""
        sums = load_sums(routing, real, self.n_experts)
        for balance in self.balance:
            found = balance.sums(routing, real, sequence)
            sums |= {f"{balance.name}.{key}": value for key, value in found.items()}
        return sums | {f"router.{key}": value for key, value in routing.aux.items()}

    def _with_shared(self, y: Tensor, x: Tensor, sequence: Sequence) -> Tensor:
        if self.shared is None:
            return y
        shared = self.shared(x, sequence).y
        return y + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)

    def finish_aux(self, sums: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The balances' losses; load, entropy and what was dropped; what the router tells."""
        losses: dict[str, Tensor] = {}
        statistics = finished(sums)
        for balance in self.balance:
            own = _under(balance.name, sums)
            losses |= {balance.name: balance.loss(own)} if own else {}
        more, told = self.router.finish_aux(_under("router", sums))
        return losses | more, statistics | told

    def after_step(self, statistics: Mapping[str, Tensor]) -> None:
        """The router sees how its experts were loaded."""
        if statistics:
            self.router.after_step(statistics)

    def flops(self, queries: int, keys: int) -> int:
        """The router, the experts of all pairs, the shared expert."""
        work = self.router.flops(queries, keys) + self.router.pairs(queries) * self.experts.work
        if self.shared is not None:
            work += self.shared.flops(queries, keys) + linear_flops(self.shared_gate, queries)
        return work


def _without_padding(routing: Routing, real: Tensor | None, n_experts: int) -> Routing:
    if real is None:
        return routing
    return routing._replace(experts=torch.where(real[:, None], routing.experts, n_experts))


def _under(prefix: str, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.partition(".")[2]: value for key, value in sums.items() if key.startswith(f"{prefix}.")}
