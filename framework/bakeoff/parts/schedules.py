"""Learning rates over a run, as factors on each group's own rate; pure functions of the optimizer step."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.schedule import Schedule


def steps_of(amount: float, total: int, name: str) -> int:
    """An amount of steps: a count, or a share (below 1) of `total`.

    Raises `UserError` for a negative amount, for a count with a fraction, and for more steps than there are.
    """
    if amount < 0 or (amount >= 1 and amount != int(amount)):
        raise UserError(
            f"schedule.{name} is {amount}; it must be a count of steps, or a share of the run from 0 to below 1"
        )
    steps = round(amount * total) if amount < 1 else int(amount)
    if steps > total:
        raise UserError(
            f"schedule.{name} is {steps} steps, but the run has only {total}; give at most {total}, or a share below 1"
        )
    return steps


class Warmed(Schedule):
    """A linear warm-up, then what `after` says.

    With a warm-up of w steps, step s < w (from 0) has factor (s + 1) / w: the first step moves, step w - 1 is at full
    rate.

    Parameters
    ----------
    warmup : steps (int), or a share of the run (below 1).
    """

    def __init__(self, *, warmup: int | float = 0):
        steps_of(warmup, max(int(warmup), 1), "warmup")
        self.warmup = warmup

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Without a warm-up, and with one in steps or as a share."""
        return [{}, {"warmup": 3}, {"warmup": 0.25}]

    def factor(self, step: int, total: int) -> float:
        """Factor on the learning rate for optimizer step `step` (from 0) of `total`."""
        warmup = steps_of(self.warmup, total, "warmup")
        if step < warmup:
            return (step + 1) / warmup
        return self.after(step - warmup, total - warmup, total)

    @abstractmethod
    def after(self, step: int, left: int, total: int) -> float:
        """Factor at `step` (from 0) of the `left` steps that follow the warm-up, in a run of `total`."""


def _final(final: float) -> float:
    if not 0 <= final <= 1:
        raise UserError(f"schedule.final is {final}; it must lie in 0 <= final <= 1, the factor that the run ends with")
    return final


class Constant(Warmed):
    """Full rate after the warm-up."""

    reference = Reference(
        "Goyal et al.",
        2017,
        "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        "https://arxiv.org/abs/1706.02677",
    )

    def after(self, step: int, left: int, total: int) -> float:
        """1."""
        return 1.0


class Linear(Warmed):
    """Straight down to `final`, which the step after the last would have.

    Parameters
    ----------
    warmup : steps (int), or a share of the run (below 1).
    final : the factor at the end.
    """

    reference = Reference(
        "Bergsma et al.",
        2025,
        "Straight to Zero: Why Linearly Decaying the Learning Rate to Zero Works Best for LLMs",
        "https://arxiv.org/abs/2502.15938",
    )

    def __init__(self, *, warmup: int | float = 0, final: float = 0.0):
        super().__init__(warmup=warmup)
        self.final = _final(final)

    def after(self, step: int, left: int, total: int) -> float:
        """1 - (1 - final) step / left."""
        return 1.0 - (1.0 - self.final) * min(step / max(left, 1), 1.0)


class Cosine(Warmed):
    """Half a cosine down to `final`, which the step after the last would have.

    Parameters
    ----------
    warmup : steps (int), or a share of the run (below 1).
    final : the factor at the end.
    """

    reference = Reference(
        "Loshchilov and Hutter",
        2016,
        "SGDR: Stochastic Gradient Descent with Warm Restarts",
        "https://arxiv.org/abs/1608.03983",
    )

    def __init__(self, *, warmup: int | float = 0, final: float = 0.1):
        super().__init__(warmup=warmup)
        self.final = _final(final)

    def after(self, step: int, left: int, total: int) -> float:
        """final + (1 - final) (1 + cos(pi step / left)) / 2."""
        share = min(step / max(left, 1), 1.0)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * share))


class WarmupStableDecay(Warmed):
    """Warm-up, full rate, then straight down to `final` over the last steps.

    Parameters
    ----------
    warmup : steps (int), or a share of the run (below 1).
    decay : length of the last phase, in steps (int) or as a share of the run (below 1).
    final : the factor at the end, which the step after the last would have.
    """

    reference = Reference(
        "Hu et al.",
        2024,
        "MiniCPM: Unveiling the Potential of Small Language Models with Scalable Training Strategies",
        "https://arxiv.org/abs/2404.06395",
    )

    def __init__(self, *, warmup: int | float = 0, decay: int | float = 0.2, final: float = 0.0):
        super().__init__(warmup=warmup)
        steps_of(decay, max(int(decay), 1), "decay")
        self.decay, self.final = decay, _final(final)

    def after(self, step: int, left: int, total: int) -> float:
        """1, and in the last `decay` steps 1 - (1 - final) (steps into the decay) / decay."""
        decay = steps_of(self.decay, total, "decay")
        if decay > left:
            raise UserError(
                f"schedule: a warm-up of {total - left} steps and a decay of {decay} do not fit a run of {total}"
            )
        return 1.0 - (1.0 - self.final) * min(max(step - (left - decay), 0) / max(decay, 1), 1.0)
