"""Convolution, chunks and single steps of S4 and S4D against the recurrence and the published kernels."""

import pytest
import torch
from bakeoff_ssm.hippo import DIAGONALS, legs, legs_low_rank
from bakeoff_ssm.linear_systems import System, convolve, kernel, scan, scan_naive, step
from bakeoff_ssm.transitions import Diagonal, LowRank

B, D, N = 2, 3, 8
DT = torch.tensor([[0.01], [0.05], [0.3]], dtype=torch.float64)


def low_rank(C=None):
    rates, P, b = (t.expand(D, -1) for t in legs_low_rank(N))
    A = LowRank.bilinear(rates, P, DT)
    return System(A, A.solve(DT * b), noise(D, N // 2, seed=4) if C is None else C)


def diagonal():
    rates = DIAGONALS["lin"](N).expand(D, -1)
    a = (DT * rates).exp()
    return System(Diagonal(a), (a - 1) / rates, noise(D, N // 2, seed=4))


def noise(*shape, dtype=torch.complex128, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def signal(T):
    return noise(B, T, D, dtype=torch.float64, seed=1).requires_grad_()


def segments_of(T):
    starts = torch.zeros(B, T, dtype=torch.long)
    starts[0, 0], starts[0, T // 3], starts[1, T // 2], starts[1, T - 1] = 1, 1, 1, 1
    return starts.cumsum(1)


SYSTEMS = pytest.mark.parametrize("build", [low_rank, diagonal])


def test_the_kernel_of_hippo_is_that_of_its_matrices_made_discrete_by_the_bilinear_rule():
    """C is chosen as B of LegS, which is the conjugate of B in the other basis."""
    K = kernel(low_rank(C=legs_low_rank(N)[2].conj().expand(D, -1)), 50)
    A, b = legs(N)
    one = torch.eye(N, dtype=torch.float64)
    for channel, dt in enumerate(DT.flatten()):
        step_in = torch.linalg.inv(one - dt / 2 * A)
        transition, state, expected = step_in @ (one + dt / 2 * A), step_in @ (dt * b), []
        for _ in range(50):
            expected.append(b @ state)
            state = transition @ state
        torch.testing.assert_close(K[channel], torch.stack(expected), atol=1e-10, rtol=1e-10)


def test_the_kernel_of_s4d_is_its_closed_form():
    """`2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(l dt A_n)`."""
    rates, C = DIAGONALS["lin"](N), noise(D, N // 2, seed=4)
    terms = (C * ((DT * rates).exp() - 1) / rates)[..., None] * (DT * rates)[..., None].mul(torch.arange(70)).exp()
    torch.testing.assert_close(kernel(diagonal(), 70), 2 * terms.sum(1).real, atol=1e-12, rtol=1e-12)


@SYSTEMS
@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
def test_the_convolution_equals_the_recurrence(build, T):
    u, system = signal(T), build()
    y, (expected, _) = convolve(u, kernel(system, T)), scan_naive(u, system)
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=0)
    weight = noise(*y.shape, dtype=torch.float64, seed=2)
    mine, theirs = (torch.autograd.grad((t * weight).sum(), u)[0] for t in (y, expected))
    torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=0)


@SYSTEMS
@pytest.mark.parametrize("T", [1, 2, 31, 32, 33, 100])
@pytest.mark.parametrize("packed", [False, True])
def test_chunks_equal_the_recurrence_and_so_do_their_gradients(build, T, packed):
    u, system = signal(T), build()
    state = noise(B, D, N // 2, seed=3).requires_grad_()
    segments = segments_of(T) if packed else None
    results = []
    for form in (scan, scan_naive):
        y, after = form(u, system, state=state, segments=segments)
        loss = y.sin().sum() + torch.view_as_real(after).sin().sum()
        results.append([y, after, *torch.autograd.grad(loss, [u, state])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


@SYSTEMS
def test_the_state_is_that_after_each_rows_length(build):
    u, system, state, segments = signal(70), build(), noise(B, D, N // 2, seed=3), segments_of(70)
    for lengths in ([5, 70], [1, 31], [32, 33], [64, 69]):
        _, after = scan(u, system, state=state, segments=segments, lengths=torch.tensor(lengths))
        for row, length in enumerate(lengths):
            here = slice(row, row + 1)
            _, alone = scan_naive(u[here, :length], system, state=state[here], segments=segments[here])
            torch.testing.assert_close(after[here], alone, atol=1e-10, rtol=0)
    _, after = scan(u, system, state=state, segments=segments, lengths=torch.zeros(B, dtype=torch.long))
    assert torch.equal(after, state)


@SYSTEMS
@pytest.mark.parametrize("packed", [False, True])
def test_one_step_equals_the_recurrence(build, packed):
    u, system, state = signal(1), build(), noise(B, D, N // 2, seed=3)
    segments = torch.tensor([[0], [1]]) if packed else None
    fast = step(u, system, state=state, segments=segments)
    for a, b in zip(fast, scan_naive(u, system, state=state, segments=segments), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_no_gradient_crosses_documents():
    u = signal(70)
    y, _ = scan(u, low_rank(), segments=(torch.arange(70) >= 41).long().expand(B, -1))
    (grad,) = torch.autograd.grad(y[:, 41:].sum(), u)
    assert grad[:, :41].abs().max() == 0
