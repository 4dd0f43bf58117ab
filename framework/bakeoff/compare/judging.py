"""One number by which arms are judged: means, paired differences to the baseline, verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from bakeoff.compare.statistics import Difference, Estimate, estimate, holm, paired
from bakeoff.compare.verdict import Verdict, judge, judge_baseline


@dataclass(frozen=True)
class Metric:
    """Where a number stands in a trial's measures and in the table, what it is called, and which way is better."""

    key: str
    column: str
    unit: str
    more_is_better: bool = False


class Judging:
    """A metric of all arms, by seed; the first arm is the baseline.

    Attributes
    ----------
    apart : arms whose values are of other text than the baseline's, and are not held against them.
    quality : mean of each arm that has a value. differences : paired difference of each other arm to the baseline.
    adjusted : their p-values after Holm's correction over arms.
    """

    def __init__(
        self,
        metric: Metric,
        values: Mapping[str, Mapping[int, float]],
        baseline: str,
        apart: frozenset[str] = frozenset(),
    ):
        self.metric, self.values, self.baseline, self.apart = metric, values, baseline, apart

    @cached_property
    def quality(self) -> dict[str, Estimate]:
        return {name: estimate(list(v.values())) for name, v in self.values.items() if v}

    @cached_property
    def differences(self) -> dict[str, Difference | None]:
        base = self.values[self.baseline]
        return {
            name: None if name in self.apart else paired(own, base)
            for name, own in self.values.items()
            if name != self.baseline
        }

    @cached_property
    def adjusted(self) -> dict[str, float | None]:
        return holm({name: d.p if d else None for name, d in self.differences.items()})

    def by_seed(self, name: str) -> dict[int, float]:
        """An arm's difference to the baseline on each seed that both have."""
        own, base = self.values[name], self.values[self.baseline]
        if name in self.apart:
            return {}
        return {seed: own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())}

    def verdict(self, name: str) -> Verdict | None:
        """What may be said of an arm; None where it has no value."""
        if name not in self.quality:
            return None
        if name == self.baseline:
            return judge_baseline(self.quality[name], self.metric.unit)
        if name in self.apart:
            return Verdict("other text", f"not compared: validated on other text than {self.baseline}")
        comparisons = sum(p is not None for p in self.adjusted.values())
        difference, adjusted = self.differences[name], self.adjusted[name]
        more = self.metric.more_is_better
        return judge(difference, adjusted, self.baseline, self.metric.unit, comparisons, more_is_better=more)
