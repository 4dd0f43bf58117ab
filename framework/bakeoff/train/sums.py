"""The sums of an optimizer step over micro-batches and ranks; each loss term is divided once, by its weight."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

import torch
from torch import Tensor, nn

from bakeoff.interfaces.objective import Statistics, Terms
from bakeoff.parts.terms import added_gradients, weighed_apart

#: Adds a vector up over ranks; None where there is one rank.
AddUp = Callable[[Tensor], Tensor] | None


class Totals:
    """What a step has added up: `sum.TERM`, `weight.TERM` and the statistics by name, in one vector."""

    def __init__(self, vector: Tensor, layout: Items[tuple[str, torch.Size]]):
        self.vector = vector
        self.places: dict[str, tuple[int, torch.Size]] = {}
        start = 0
        for name, shape in layout:
            self.places[name] = (start, shape)
            start += shape.numel()
        #: The vector in plain numbers, where reading it does not wait for a device.
        self.values = vector.tolist() if vector.device.type == "cpu" else None

    def __getitem__(self, name: str) -> Tensor:
        start, shape = self.places[name]
        return self.vector[start : start + shape.numel()].view(shape)

    def numbers(self, *more: Tensor) -> tuple[dict[str, float], list[float]]:
        """The totals of one element, and `more` scalars, in plain numbers: one transfer from the device."""
        if self.values is None:
            values = torch.cat([self.vector, *(value.reshape(1).to(self.vector) for value in more)]).tolist()
        else:
            values = [*self.values, *(value.item() for value in more)]
        plain = {name: values[start] for name, (start, shape) in self.places.items() if shape.numel() == 1}
        return plain, values[len(values) - len(more) :]


class StepSums:
    """Adds up loss terms, their weights and statistics until the optimizer steps.

    Gradients are accumulated from plain sums, and scaled once: a token counts the same in whichever micro-batch and on
    whichever rank it stands. Terms that share the weight of the first one are differentiated together with it; a term
    with a weight of its own (another tensor) has its gradients kept apart, at the price of a backward pass, since how
    the two weights compare is known only at the end of the step. It is known at once where a micro-batch is all of it.

    Parameters
    ----------
    nominal : about how many targets a step has; sums are divided by it early, so that half precision does not overflow.
    ranks : over how many ranks the wrapped module averages gradients.
    add_up : adds a vector up over ranks, in place of which None stands for a single rank.
    together : gradients are added up by whoever calls, all at once after `finish`, and not averaged before.
    """

    def __init__(self, *, nominal: float, ranks: int = 1, add_up: AddUp = None, together: bool = False):
        self.nominal, self.ranks, self.add_up, self.together = nominal, ranks, add_up, together
        self.layout: list[tuple[str, torch.Size]] = []
        self.vector: Tensor | None = None
        self.apart: dict[str, Tensor] = {}
        self.divided = False
        self.gradients: dict[str, list[Tensor | None]] = {}

    def enter(self, terms: Terms, statistics: Statistics, *, whole: bool = False) -> Tensor:
        """Add one micro-batch; returns what is to be differentiated for the terms that share the first one's weight.

        whole : no other micro-batch has a part in the step; then it is for all terms.
        """
        self._add(terms, statistics)
        apart = weighed_apart(terms)
        self.divided = whole and bool(apart)
        if self.divided:
            return torch.stack([value * _reciprocal(weight) for value, weight in terms.values()]).sum()
        self.apart = {name: value / self.nominal for name, value in apart.items()}
        first, *others = (value for name, (value, _) in terms.items() if name not in apart)
        return sum(others, first) / self.nominal

    def _add(self, terms: Terms, statistics: Statistics) -> None:
        named = {f"{kind}.{name}": pair[i] for name, pair in terms.items() for i, kind in enumerate(("sum", "weight"))}
        named |= statistics
        layout = [(name, value.shape) for name, value in named.items()]
        vector = torch.cat([value.detach().reshape(-1) for value in named.values()])
        vector = vector.double() if vector.device.type != "mps" else vector.float()
        if self.vector is None:
            self.layout, self.vector = layout, vector
        elif layout == self.layout:
            self.vector += vector
        else:
            odd = sorted({name for name, _ in set(layout) ^ set(self.layout)})
            raise ValueError(f"the objective's terms and statistics differ between micro-batches: {', '.join(odd)}")

    def keep_apart(self, parameters: Items[nn.Parameter], factor: Tensor | float = 1.0) -> None:
        """Add the gradients of terms with a weight of their own, times `factor`, to what is kept apart for the step."""
        for name, value in self.apart.items():
            if not value.requires_grad:  # nothing that is trained has a part in it
                continue
            held = self.gradients.get(name, [None] * len(parameters))
            self.gradients[name] = added_gradients(value * factor, parameters, held)
        self.apart = {}

    def finish(self, parameters: Items[nn.Parameter]) -> Totals:
        """End the step: add up over ranks, scale all gradients, start anew; returns what was added up.

        A term whose weight is 0 adds no gradient.
        """
        assert self.vector is not None
        totals = Totals(self.vector if self.add_up is None else self.add_up(self.vector), self.layout)
        leading = next(name for name in totals.places if name.startswith("weight."))
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients and not self.divided:
            torch._foreach_mul_(gradients, self._scale(totals, leading, 1 if self.together else self.ranks))
        for name, held in self.gradients.items():
            self._add_apart(parameters, held, self._scale(totals, f"weight.{name}", 1))
        self.vector, self.gradients = None, {}
        return totals

    def _scale(self, totals: Totals, name: str, ranks: int) -> Any:
        """`nominal * ranks / weight`, or 0 where that is 0: a number on a CPU, a tensor where reading would wait."""
        if totals.values is not None:
            number = totals.values[totals.places[name][0]]
            return self.nominal * ranks / number if number > 0 else 0.0
        return self.nominal * ranks * _reciprocal(totals[name])

    def _add_apart(self, parameters: Items[nn.Parameter], held: Items[Tensor | None], scale: Any) -> None:
        for parameter, gradient in zip(parameters, held, strict=True):
            if self.add_up is not None and not self.together:
                gradient = self.add_up(torch.zeros_like(parameter) if gradient is None else gradient)
            if gradient is not None:
                scaled = (gradient * scale).to(gradient.dtype)
                parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled


def _reciprocal(weight: Tensor) -> Tensor:
    """1 / weight, or 0 where that is 0."""
    return torch.where(weight > 0, 1 / weight.clamp(min=torch.finfo(torch.float32).tiny), 0.0)
