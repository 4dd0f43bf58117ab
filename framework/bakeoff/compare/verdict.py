"""What may be said of an arm, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bakeoff.compare.statistics import CONFIDENCE, Difference, Estimate
from bakeoff.compare.words import decimals, percent, plural, signed

Kind = Literal[
    "baseline", "better", "worse", "none shown", "one seed", "no pair", "other text", "refused", "failed", "waiting"
]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one arm against the baseline."""

    kind: Kind
    text: str


def judge(
    difference: Difference | None,
    adjusted: float | None,
    baseline: str,
    unit: str,
    comparisons: int,
    *,
    more_is_better: bool = False,
) -> Verdict:
    """The verdict on a paired difference and its p-value, corrected for all `comparisons`."""
    if difference is None:
        return Verdict("no pair", f"no seed in common with {baseline}: nothing to compare")
    interval = difference.interval
    digits = decimals(difference.half)
    if interval is None or adjusted is None:
        text = f"one seed: {signed(difference.mean, digits)} {unit} against {baseline}; no interval, so no verdict"
        return Verdict("one seed", text)
    low, high = interval
    seeds = plural(difference.n, "seed")
    share = percent(CONFIDENCE)
    if adjusted <= 1.0 - CONFIDENCE:
        better = (difference.mean > 0) is more_is_better
        near, far = (-high, -low) if difference.mean < 0 else (low, high)
        text = (
            f"{'better' if better else 'worse'} than {baseline} by {abs(difference.mean):.{digits}f} {unit} "
            f"({share} interval {near:.{digits}f} to {far:.{digits}f}, {seeds})"
        )
        return Verdict("better" if better else "worse", text)
    corrected = f" once corrected for {comparisons} comparisons" if not low <= 0.0 <= high else ""
    text = (
        f"no difference to {baseline} shown{corrected} (difference {signed(difference.mean, digits)} {unit}, "
        f"{share} interval {signed(low, digits)} to {signed(high, digits)}, {seeds})"
    )
    return Verdict("none shown", text)


def judge_baseline(own: Estimate, unit: str) -> Verdict:
    """What is said of the baseline itself."""
    digits = decimals(own.half)
    if own.interval is None:
        return Verdict("baseline", f"baseline: {own.mean:.{digits}f} {unit} on one seed")
    low, high = own.interval
    share = percent(CONFIDENCE)
    text = (
        f"baseline: {own.mean:.{digits}f} {unit} "
        f"({share} interval {low:.{digits}f} to {high:.{digits}f}, {plural(own.n, 'seed')})"
    )
    return Verdict("baseline", text)
