"""HiPPO-LegS and the diagonals of S4D against published numbers."""

import math

import pytest
import torch
from bakeoff_ssm.hippo import DIAGONALS, legs, legs_low_rank
from numpy.polynomial import Legendre


def test_the_matrices_of_four_states():
    A, B = legs(4)
    root = math.sqrt
    expected = [
        [-1, 0, 0, 0],
        [-root(3), -2, 0, 0],
        [-root(5), -root(15), -3, 0],
        [-root(7), -root(21), -root(35), -4],
    ]
    torch.testing.assert_close(A, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(B, torch.tensor([1, 3, 5, 7], dtype=torch.float64).sqrt(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("N", [4, 8])
def test_the_eigenvalues_are_minus_one_to_minus_n(N):
    wanted = -torch.arange(N, 0, -1, dtype=torch.float64)
    assert torch.equal(torch.linalg.eigvals(legs(N)[0]).real.sort().values, wanted)
    rates, P, _ = legs_low_rank(N)
    rates, P = torch.cat([rates, rates.conj()]), torch.cat([P, P.conj()])
    found = torch.linalg.eigvals(torch.diag(rates) - torch.outer(P, P.conj()))
    torch.testing.assert_close(found.real.sort().values, wanted, atol=1e-8, rtol=0)
    assert found.imag.abs().max() < 1e-8


@pytest.mark.parametrize("degree", [0, 1, 3, 7])
def test_a_polynomial_below_the_order_is_remembered_exactly(degree):
    """Of u = s^k the state is t^k v with (k - A) v = B, and sum v_n sqrt(2n + 1) P_n(2s/t - 1) is u again."""
    A, B = legs(8)
    v = torch.linalg.solve(degree * torch.eye(8, dtype=torch.float64) - A, B)
    polynomial = Legendre((v * B).tolist(), domain=[0, 1])
    s = torch.linspace(0, 1, 33, dtype=torch.float64).numpy()
    assert polynomial(s) == pytest.approx(s**degree, abs=1e-9)


def test_the_diagonals_by_hand():
    lin, inv = DIAGONALS["lin"](6), DIAGONALS["inv"](6)
    assert lin.real.tolist() == inv.real.tolist() == [-0.5] * 3
    assert lin.imag.tolist() == pytest.approx([0, math.pi, 2 * math.pi], abs=1e-12)
    # N / pi (N / (2n + 1) - 1): 6/pi times 5, 1 and 1/5
    assert inv.imag.tolist() == pytest.approx([30 / math.pi, 6 / math.pi, 1.2 / math.pi], abs=1e-12)


def test_the_largest_frequency_of_legs_grows_with_the_square_of_the_order():
    """Of S4D-Inv it is N (N - 1) / pi, of LegS about as much (Gu et al., 2022, section 4.4)."""
    assert DIAGONALS["legs"](64).imag.max().item() == pytest.approx(64 * 63 / math.pi, rel=0.05)
