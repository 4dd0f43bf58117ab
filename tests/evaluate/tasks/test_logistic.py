"""The solver against scipy's, and the best unit by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bakeoff.evaluate.tasks.logistic import best_unit, fit, strongest
from scipy.optimize import minimize


def texts(n=120, units=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, units, dtype=torch.double, generator=generator)
    x[:, 3] = x[:, 2] + 0.1 * x[:, 3]  # nearly the same unit twice
    y = (x[:, 0] - 0.7 * x[:, 2] + 0.8 * torch.randn(n, dtype=torch.double, generator=generator) > 0.4).double()
    return x, y


def by_scipy(x, y, penalty):
    """The same minimum with weights as differences of two positive ones, which makes the penalty smooth."""
    x, y, units = x.numpy(), y.numpy(), x.shape[1]

    def cost(p):
        z = x @ (p[:units] - p[units:-1]) + p[-1]
        residual = 1 / (1 + np.exp(-z)) - y
        slope = x.T @ residual / len(y)
        value = np.mean(np.logaddexp(0, z) - y * z) + penalty * p[:-1].sum()
        return value, np.concatenate([slope + penalty, penalty - slope, [residual.mean()]])

    bounds = [(0, None)] * (2 * units) + [(None, None)]
    found = minimize(cost, np.zeros(2 * units + 1), jac=True, bounds=bounds, method="L-BFGS-B",
                     options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10})  # fmt: skip
    return found.x[:units] - found.x[units:-1], found.x[-1]


@pytest.mark.parametrize("penalty", [0.2, 0.05, 0.01, 0.001])
def test_the_minimum_is_scipys(penalty):
    x, y = texts()
    found = fit(x, y, penalty)
    weights, bias = by_scipy(x, y, penalty)
    np.testing.assert_allclose(found.weights, weights, atol=2e-4)
    assert float(found.bias) == pytest.approx(bias, abs=2e-4)


def test_the_minimum_meets_its_conditions_wherever_it_begins():
    x, y = texts(seed=1)
    for penalty in (0.1, 0.02):
        found = fit(x, y, penalty, start=fit(x, y, 0.001))
        slope = x.T @ (torch.sigmoid(x @ found.weights + found.bias) - y) / len(y)
        kept = found.weights != 0
        assert 0 < int(kept.sum()) < x.shape[1]
        torch.testing.assert_close(slope[kept], -penalty * found.weights[kept].sign(), atol=1e-6, rtol=0)
        assert float(slope[~kept].abs().max()) <= penalty


def test_the_strongest_penalty_is_the_first_that_keeps_no_unit():
    x, y = texts()
    most = strongest(x, y)
    assert not fit(x, y, 1.0001 * most).weights.any()
    assert int((fit(x, y, 0.99 * most).weights != 0).sum()) == 1
    # with no unit the bias is the log-odds of the classes
    assert float(fit(x, y, 2 * most).bias) == pytest.approx(float(torch.logit(y.mean())), abs=1e-6)


def test_accuracy_counts_the_likelier_class():
    x = torch.tensor([[1.0], [2.0], [-1.0], [-3.0]]).double()
    found = fit(x, torch.tensor([1.0, 1, 0, 0]).double(), 0.01)
    assert found.accuracy(x, torch.tensor([1.0, 0, 0, 0]).double()) == 0.75


def test_the_best_unit_of_a_tiny_matrix():
    y = torch.tensor([1.0, 0, 1, 0, 1])
    x = torch.tensor([[5.0, 1, 7], [4, 2, 7], [6, 0, 7], [1, 4, 7], [2, 3, 7]]).double()
    # unit 0 by size: 1 (0), 2 (1), 4 (0), 5 (1), 6 (1): above 4.5, or above 1.5, 4 of 5 are right
    # unit 1: 0 (1), 1 (1), 2 (0), 3 (1), 4 (0): below 1.5, or below 3.5, 4 of 5; unit 2 tells nothing
    unit = best_unit(x, y)
    assert (unit.number, unit.threshold, unit.sign) == (0, 1.5, 1)
    assert unit.accuracy(x, y) == 0.8
    turned = best_unit(x[:, 1:], y)
    assert (turned.number, turned.threshold, turned.sign) == (0, 1.5, -1)
    assert turned.accuracy(x[:, 1:], y) == 0.8
    assert turned.accuracy(torch.tensor([[0.0], [9.0]]), torch.tensor([1.0, 1])) == 0.5


def test_units_that_tell_nothing_are_no_error():
    unit = best_unit(torch.ones(4, 2).double(), torch.tensor([1.0, 0, 1, 1]))
    assert unit.number == 0
