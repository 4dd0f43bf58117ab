"""How the next token is chosen: the most likely one, or a draw from a shaped distribution."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.sampler import Sampler


class Greedy(Sampler):
    """The most likely token; of equals, the one with the smallest id."""

    def choose(self, logits: Tensor, seen: Tensor, uniform: Tensor) -> Tensor:
        """Ids (B,) of the largest logits (B, V)."""
        return logits.argmax(-1)


class Sample(Sampler):
    """A draw from the softmax of the logits, shaped in the order of the parameters' list below.

    Parameters
    ----------
    repetition_penalty : logits of ids that the row holds already are divided by it where positive, multiplied by it
        where negative (CTRL, arXiv:1909.05858); 1 changes nothing.
    temperature : divides the logits; must be positive (use `greedy` for its limit at 0).
    top_k : keeps the k most likely ids.
    top_p : keeps the smallest set of most likely ids whose mass reaches p, the one that crosses included.
    min_p : keeps ids at least this times as likely as the most likely one (arXiv:2407.01082).

    What is left is renormalised after each restriction. Raises `UserError` for values out of range.
    """

    reference = Reference(
        "Holtzman et al.", 2020, "The Curious Case of Neural Text Degeneration", "https://arxiv.org/abs/1904.09751"
    )

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
    ):
        if not (temperature > 0 and math.isfinite(temperature)):
            raise UserError(f"temperature is {temperature}; it must be positive: use the sampler 'greedy' for 0")
        if top_k is not None and top_k < 1:
            raise UserError(f"top_k is {top_k}; it must be at least 1, or null for all")
        if top_p is not None and not 0 < top_p <= 1:
            raise UserError(f"top_p is {top_p}; it must lie in 0 < top_p <= 1, or be null for all")
        if min_p is not None and not 0 <= min_p <= 1:
            raise UserError(f"min_p is {min_p}; it must lie in 0 <= min_p <= 1, or be null for all")
        if not (repetition_penalty > 0 and math.isfinite(repetition_penalty)):
            raise UserError(f"repetition_penalty is {repetition_penalty}; it must be positive, 1 for none")
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self.repetition_penalty = repetition_penalty
        restricted = top_k is not None or top_p not in (None, 1) or bool(min_p)
        self.faithful = temperature == 1 and repetition_penalty == 1 and not restricted

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Each way to shape, alone and together."""
        each: dict[str, Any] = {"temperature": 2.0, "top_k": 5, "top_p": 0.5, "min_p": 0.2, "repetition_penalty": 1.5}
        return [{}, *({name: value} for name, value in each.items()), each]

    def choose(self, logits: Tensor, seen: Tensor, uniform: Tensor) -> Tensor:
        """Ids (B,) drawn from logits (B, V) by inverting the cumulative distribution at `uniform` (B,)."""
        probabilities, ids = self._candidates(logits.float(), seen)
        cumulative = probabilities.cumsum(-1)
        total = cumulative[:, -1]
        # below the total whatever the rounding, so that an id of probability zero is never chosen
        target = torch.minimum(uniform.float() * total, total.nextafter(torch.zeros_like(total)))
        place = torch.searchsorted(cumulative, target[:, None], right=True)
        return (place if ids is None else ids.gather(-1, place))[:, 0]

    def _candidates(self, logits: Tensor, seen: Tensor) -> tuple[Tensor, Tensor | None]:
        """Masses (B, C) and the ids (B, C) they belong to, most likely first; ids None: C is V, in order."""
        if self.repetition_penalty != 1:
            less = torch.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = torch.where(seen, less, logits)
        ids = None
        V = logits.shape[-1]
        if self.top_k is not None or self.top_p is not None:
            logits, ids = logits.topk(V if self.top_k is None else min(self.top_k, V))
        probabilities = (logits / self.temperature).softmax(-1)
        if self.top_p is not None:
            before = probabilities.cumsum(-1) - probabilities
            probabilities = probabilities.where(before < self.top_p, 0)
        if self.min_p is not None:
            floor = self.min_p * probabilities.amax(-1, keepdim=True)
            probabilities = probabilities.where(probabilities >= floor, 0)
        return probabilities, ids
