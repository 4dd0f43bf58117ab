"""What takes a linear state-space model from one token to the next: a diagonal, low rank beside it, or any matrix.

Each of D channels has a state of n complex numbers that stand for n conjugate pairs; a state is (..., D, n) complex. As
real vectors, real and imaginary parts side by side, (..., D, 2n).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Diagonal(NamedTuple):
    """`s -> a s`, a (D, n) complex."""

    a: Tensor

    def advance(self, s: Tensor) -> Tensor:
        """The state (..., D, n) a token later, without input."""
        return self.a * s

    def explicit(self) -> Diagonal:
        """Itself: it is cheap to square."""
        return self

    def squared(self) -> Diagonal:
        """Two tokens at once."""
        return Diagonal(self.a * self.a)

    def transposed(self) -> Diagonal:
        """The transpose of the map of real vectors."""
        return Diagonal(self.a.conj())


class Dense(NamedTuple):
    """Any map of real vectors, A (D, 2n, 2n)."""

    A: Tensor

    def advance(self, s: Tensor) -> Tensor:
        """The state (..., D, n) a token later, without input."""
        flat = real(s).movedim(-2, 0)  # (D, ..., 2n)
        moved = (flat.flatten(1, -2) if flat.ndim > 2 else flat[:, None]) @ self.A.mT
        return paired(moved.view(flat.shape).movedim(0, -2))

    def squared(self) -> Dense:
        """Two tokens at once."""
        return Dense(self.A @ self.A)

    def transposed(self) -> Dense:
        """The transpose."""
        return Dense(self.A.mT)


class LowRank(NamedTuple):
    """`(1 - dt/2 A)^-1 (1 + dt/2 A)` with A = diag(rates) - P P^*, conjugates included: the bilinear rule.

    Products with P cost as much as the diagonal. `rates` and `P` (D, n) complex; `half` (D, 1), dt/2; what is needed
    of `M = 1 - dt/2 diag(rates)`: `inverse` M^-1, `row` P^* M^-1 and `weight` dt/2 / (1 + dt/2 P^* M^-1 P).
    """

    rates: Tensor
    P: Tensor
    half: Tensor
    inverse: Tensor
    row: Tensor
    weight: Tensor

    @classmethod
    def bilinear(cls, rates: Tensor, P: Tensor, dt: Tensor) -> LowRank:
        """With steps `dt` (D, 1)."""
        half = dt / 2
        inverse = 1 / (1 - half * rates)
        row = P.conj() * inverse
        return cls(rates, P, half, inverse, row, half / (1 + half * _twice_real(row * P)))

    def advance(self, s: Tensor) -> Tensor:
        """The state (..., D, n) a token later, without input."""
        return self.solve(s + self.half * (self.rates * s - self.P * _twice_real(self.P.conj() * s)))

    def solve(self, v: Tensor) -> Tensor:
        """`(1 - dt/2 A)^-1 v`, by the formula of Sherman, Morrison and Woodbury."""
        return self.inverse * (v - self.P * (self.weight * _twice_real(self.row * v)))

    def explicit(self) -> Dense:
        """The matrix, which can be squared."""
        n = self.P.shape[-1]
        basis = torch.eye(2 * n, dtype=self.half.dtype, device=self.half.device)
        columns = self.advance(paired(basis)[:, None].expand(-1, self.P.shape[0], -1))  # (2n, D, n)
        return Dense(real(columns).permute(1, 2, 0))


def _twice_real(t: Tensor) -> Tensor:
    return 2 * t.real.sum(-1, keepdim=True)


def real(s: Tensor) -> Tensor:
    """(..., n) complex -> (..., 2n)."""
    return torch.view_as_real(s.resolve_conj()).flatten(-2)


def paired(s: Tensor) -> Tensor:
    """(..., 2n) -> (..., n) complex."""
    return torch.view_as_complex(s.unflatten(-1, (-1, 2)).contiguous())
