"""Logistic regression on units: all of them under an L1 penalty, and the best one alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

#: How far the optimality conditions may be off, and the most steps taken towards them.
TOLERANCE, MOST = 1e-7, 20_000


class Fit(NamedTuple):
    """`sigmoid(x w + bias)` is the probability of class 1; `w` (F,), `bias` a scalar."""

    weights: Tensor
    bias: Tensor

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """Share of the rows of `x` (n, F) whose likelier class is `y` (n,)."""
        return float(((x @ self.weights + self.bias > 0) == y.bool()).double().mean())


class Unit(NamedTuple):
    """Class 1 is said where `sign (x[:, number] - threshold)` is positive."""

    number: int
    threshold: float
    sign: int

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """Share of the rows of `x` (n, F) whose class is said rightly."""
        said = self.sign * (x[:, self.number] - self.threshold) > 0
        return float((said == y.bool()).double().mean())


def strongest(x: Tensor, y: Tensor) -> float:
    """The least penalty under which every weight is 0."""
    return float((x.T @ (y - y.mean())).abs().max() / len(y))


def fit(x: Tensor, y: Tensor, penalty: float, start: Fit | None = None) -> Fit:
    """The minimum of the mean log-loss plus `penalty |w|_1`; the bias is free. `x` (n, F), `y` (n,) of 0 and 1.

    Proximal gradient steps with momentum, begun anew where it leads uphill (FISTA: Beck and Teboulle, 2009;
    O'Donoghue and Candes, 2015).
    """
    with_bias = torch.cat([x, x.new_ones(len(x), 1)], 1)
    rate = 4 * len(x) / float(torch.linalg.matrix_norm(with_bias, 2)) ** 2
    shrink = torch.full((with_bias.shape[1],), penalty * rate, dtype=x.dtype, device=x.device)
    shrink[-1] = 0.0
    at = x.new_zeros(with_bias.shape[1]) if start is None else torch.cat([start.weights, start.bias[None]])
    ahead, momentum = at, 1.0
    for _ in range(MOST):
        gradient = with_bias.T @ (torch.sigmoid(with_bias @ ahead) - y) / len(y)
        moved = ahead - rate * gradient
        after = moved.sign() * (moved.abs() - shrink).clamp_min(0)
        if float((after - ahead).abs().max()) < TOLERANCE * rate:
            at = after
            break
        if float((ahead - after) @ (after - at)) > 0:
            momentum = 1.0
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = after + (momentum - 1) / following * (after - at)
        at, momentum = after, following
    return Fit(at[:-1], at[-1])


def best_unit(x: Tensor, y: Tensor) -> Unit:
    """The unit, threshold and direction that say the class of most rows of `x` (n, F) rightly; the first of equals.

    Thresholds stand half way between neighbouring values.
    """
    n, positive = len(y), int(y.sum())
    values, order = x.sort(0)
    ones_below = y[order].cumsum(0).long()  # class 1 among the first k + 1
    count = torch.arange(1, n + 1, device=x.device)[:, None]
    right = (count - ones_below) + (positive - ones_below)  # class 1 said of all behind the first k + 1
    between = torch.cat([values[1:] > values[:-1], torch.zeros_like(values[:1], dtype=torch.bool)])
    scores = torch.maximum(right, n - right).where(between, -1)
    best = scores.amax(0)
    index = int(best.argmax())
    k = int(scores[:, index].argmax())
    if not bool(between[k, index]):  # no unit tells any two rows apart
        return Unit(index, float(values[0, index]), 1)
    threshold = float(values[k, index] + values[k + 1, index]) / 2
    return Unit(index, threshold, 1 if 2 * int(right[k, index]) >= n else -1)
