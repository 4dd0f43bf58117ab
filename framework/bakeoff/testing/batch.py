"""What goes into a call and what comes out, cut, changed and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bakeoff.interfaces.state import fork, select, tensors


class Held(NamedTuple):
    """A state, and the `Past` that it holds; a backbone's state has its own, and None or what its `Subject` keeps."""

    state: Any
    past: Any

    def select(self, rows: Tensor) -> Held:
        """Of some rows, in the order given."""
        rows = rows.to(next(iter(tensors(self.state)), rows).device)
        return Held(select(self.state, rows), select(self.past, rows))

    def fork(self) -> Held:
        """A copy that can go another way."""
        return Held(fork(self.state), fork(self.past))


class Run(NamedTuple):
    """What one call gave."""

    y: Tensor
    aux: Mapping[str, Tensor]
    held: Held | None


class Place(NamedTuple):
    """Where, and by how much, two results differ."""

    row: int
    t: int
    by: str


@dataclass(frozen=True)
class Batch:
    """The input of one call: `x` (B, T, D), `tokens`, `documents`, `real` (B, T)."""

    x: Tensor
    tokens: Tensor
    documents: Tensor | None = None
    real: Tensor | None = None

    @property
    def length(self) -> int:
        return self.x.shape[1]

    def select(self, rows: Tensor) -> Batch:
        """Some rows, in the order given."""
        return Batch(*(None if t is None else t[rows] for t in self._tensors))  # type: ignore[arg-type]

    def then(self, more: Batch) -> Batch:
        """These tokens and, after them, more."""
        pairs = zip(self._tensors, more._tensors, strict=True)
        return Batch(*(None if a is None or b is None else torch.cat([a, b], 1) for a, b in pairs))  # type: ignore[arg-type]

    @property
    def _tensors(self) -> tuple[Tensor | None, ...]:
        return self.x, self.tokens, self.documents, self.real

    def cut(self, places: slice, rows: slice = slice(None)) -> Batch:
        """Some places of some rows."""
        return Batch(*(None if t is None else t[rows, places] for t in self._tensors))  # type: ignore[arg-type]

    def changed(self, where: Tensor) -> Batch:
        """Other values, and other tokens, where `where` (B, T) is True."""
        other = torch.where(where[..., None], 1.5 - 2 * self.x.detach().flip(-1), self.x)
        return replace(self, x=other, tokens=torch.where(where, self.tokens ^ 1, self.tokens))


def pulled(y: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Gradients of an uneven sum of `y`; zeros for leaves that it does not depend on."""
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)
    given = torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(given, leaves, strict=True)]


def scale(values: Tensor) -> float:
    """The largest magnitude, to which differences are compared."""
    return max(float(values.detach().abs().max()), 1e-3) if values.numel() else 1.0


def moved(before: Tensor, after: Tensor, allowed: float) -> Tensor:
    """How far each place (B, T) of (B, T, D) moved; 0 within what is allowed, infinite for NaN."""
    distance = (after.detach() - before.detach()).abs().amax(-1)
    distance = torch.nan_to_num(distance, nan=torch.inf)
    return torch.where(distance <= allowed, 0.0, distance)


def first_place(places: Tensor) -> Place | None:
    """The first nonzero of (B, T), in order of the sequence."""
    at = places.t().nonzero()
    if not len(at):
        return None
    t, row = at[0].tolist()
    return Place(row, t, f"{float(places[row, t]):.2g}")
