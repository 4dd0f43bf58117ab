"""Kind `router`: which experts of a mixture each token goes to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Items
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.sequence import Sequence

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Routing(NamedTuple):
    """The choices of N = B T tokens, row by row, k each; E is the number of experts.

    Attributes
    ----------
    experts : (N, k) long; E, one past the last, for a choice that is not taken: it was dropped, or is one too many.
    weights : (N, k), what the output of each choice is multiplied by; those of choices not taken are not read.
    logits, probabilities : (N, E) float32 of all experts, where the router has them; balances read them.
    inclusion : (N, E), the chance that an expert is among a token's choices when its noise is drawn anew.
    wanted : (N, k) long, the choices before some found no room; None: all did.
    aux : the router's own additive sums over real tokens, for its `finish_aux`.
    memory : values shown to later parts and to the objective.
    """

    experts: Tensor
    weights: Tensor
    logits: Tensor | None = None
    probabilities: Tensor | None = None
    inclusion: Tensor | None = None
    wanted: Tensor | None = None
    aux: Mapping[str, Tensor] = _NOTHING
    memory: Mapping[str, Any] = _NOTHING

    @property
    def chosen(self) -> Tensor:
        """(N, k) long, the choices with those that found no room."""
        return self.experts if self.wanted is None else self.wanted


class Slots(NamedTuple):
    """Soft routing: every one of an expert's S slots reads a mixture of a row's tokens, every token one of all slots.

    `dispatch` is (B, E, S, T), `combine` (B, T, E, S); both leave out padding.
    """

    dispatch: Tensor
    combine: Tensor
    aux: Mapping[str, Tensor] = _NOTHING


class Router(Part):
    """Chooses experts; what it computes, it computes in float32 whatever the model's precision.

    Noise is drawn in training mode only, with `torch.randn_like` and `torch.rand_like`. Padding takes no room and is
    not counted; choices that it is given all the same are not taken.
    """

    kind = "router"
    gives: ClassVar[Items[str]] = ("logits", "probabilities")
    """Which of the optional fields of `Routing` it fills, for balances."""

    sparse: ClassVar[bool] = False
    """Most of the choices that it returns are not taken, so that it pays to leave them out before anything is read."""

    def __init__(self, context: LayerContext):
        super().__init__(context)
        if context.n_experts is None:
            raise ValueError("a router stands in a mixture of experts, which tells it how many there are")
        self.n_experts = context.n_experts

    @abstractmethod
    def route(self, x: Tensor, sequence: Sequence) -> Routing | Slots:
        """The choices of the tokens of `x` (B, T, D)."""

    def forward(self, x: Tensor, sequence: Sequence) -> Routing | Slots:
        """`route`, as a call of the module."""
        return self.route(x, sequence)

    @abstractmethod
    def pairs(self, tokens: int) -> int:
        """How many (token, expert) pairs are computed for a row of `tokens` tokens, in evaluation mode."""

    def active(self) -> int:
        """How many experts a token goes to, on average: by them parameters count as active."""
        return self.pairs(1)
