"""Matrices that remember: HiPPO-LegS, its normal part plus low rank, and the diagonals that come from it.

Letters: N state size. Diagonals hold one of each conjugate pair, N / 2 numbers with positive imaginary part.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def legs(N: int) -> tuple[Tensor, Tensor]:
    """A (N, N) and B (N,), float64: x' = A x + B u keeps the Legendre coefficients of u's past, scaled to [0, 1].

    A_nk = -sqrt((2n + 1)(2k + 1)) below the diagonal, -(n + 1) on it; B_n = sqrt(2n + 1) (Gu et al., 2020,
    arXiv:2008.07669). For LegS proper the right side is divided by the time.
    """
    n = torch.arange(N, dtype=torch.float64)
    B = (2 * n + 1).sqrt()
    return -(torch.outer(B, B).tril(-1) + torch.diag(n + 1)), B


def legs_low_rank(N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lambda, P and B, (N / 2,) complex128: A of LegS in another basis is diag(Lambda) - P P^*, conjugates included.

    A + P P^T with P_n = sqrt(n + 1/2) is normal: -1/2 and a skew-symmetric matrix (Gu et al., 2021, arXiv:2111.00396).
    """
    A, B = legs(N)
    P = (torch.arange(N, dtype=torch.float64) + 0.5).sqrt()
    skew = A + torch.outer(P, P) + 0.5 * torch.eye(N, dtype=torch.float64)
    frequencies, vectors = torch.linalg.eigh(-1j * skew)
    kept = vectors[:, N // 2 :].mH  # eigenvalues ascend, and come in pairs of both signs
    return (
        torch.complex(torch.full_like(frequencies[N // 2 :], -0.5), frequencies[N // 2 :]),
        kept @ P.to(kept),
        kept @ B.to(kept),
    )


def linear(N: int) -> Tensor:
    """S4D-Lin: -1/2 + i pi n, (N / 2,) complex128."""
    n = torch.arange(N // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), math.pi * n)


def inverse(N: int) -> Tensor:
    """S4D-Inv: -1/2 + i N / pi (N / (2n + 1) - 1), (N / 2,) complex128."""
    n = torch.arange(N // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), N / math.pi * (N / (2 * n + 1) - 1))


#: The diagonals of S4D by name (Gu et al., 2022, arXiv:2206.11893).
DIAGONALS: dict[str, Callable[[int], Tensor]] = {
    "lin": linear,
    "inv": inverse,
    "legs": lambda N: legs_low_rank(N)[0],
}
