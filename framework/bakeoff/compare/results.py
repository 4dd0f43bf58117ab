"""From stored trials to what is reported: one row an arm, verdicts, curves, failures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bakeoff.compare.judging import Judging, Metric
from bakeoff.compare.statistics import Difference, Estimate, estimate
from bakeoff.compare.store import Record, Store
from bakeoff.compare.tried import Tried
from bakeoff.compare.verdict import Verdict
from bakeoff.compare.words import plural
from bakeoff.errors import UserError

#: Measures with a column of their own in the table.
COLUMNS = {
    "tokens_per_second": "throughput.tokens_per_second",
    "decode_tokens_per_second": "decode.tokens_per_second",
    "peak_bytes": "memory.peak_bytes",
}


BITS = Metric("validation.bits_per_byte", "bits_per_byte", "bits per byte")
NATS = Metric("validation.nats_per_token", "nats_per_token", "nats per token")


@dataclass
class Arm:
    """One arm's facts from the plan and its trials."""

    facts: dict[str, Any]
    trials: list[Record] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.facts["name"]

    def done(self) -> list[Record]:
        """Trials with a result."""
        return [trial for trial in self.trials if trial.result is not None]

    def values(self, key: str) -> dict[int, float]:
        """A measure by seed."""
        found = {trial.seed: trial.result["measures"].get(key) for trial in self.done() if trial.result}
        return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}

    def mean(self, key: str) -> float | None:
        """A measure's mean over seeds."""
        values = self.values(key)
        return estimate(list(values.values())).mean if values else None


class Results:
    """What a comparison's store says, computed once."""

    def __init__(self, plan: Mapping[str, Any], trials: Items[Record]):
        self.plan = plan
        planned = set(plan["trials"])
        self.trials = [trial for trial in trials if trial.name in planned]
        self.arms = [Arm(facts) for facts in plan["arms"]]
        for arm in self.arms:
            arm.trials = [t for t in self.trials if t.arm == arm.name and t.stage == "run"]

    @classmethod
    def of(cls, store: Store) -> Results:
        """The results of a store's present plan."""
        plan = store.noted("plan")
        if plan is None:
            raise UserError(f"{store.folder} holds a comparison that has not begun: there is no plan in it yet")
        return cls(plan, store.trials())

    @cached_property
    def metric(self) -> Metric:
        """Bits per byte; nats per token only where one tokenizer, that loses text, serves all arms."""
        tokenizers = {arm.facts.get("tokenizer") for arm in self.arms}
        known = any(arm.values(BITS.key) for arm in self.arms)
        return NATS if not known and len(tokenizers) == 1 else BITS

    @property
    def baseline(self) -> Arm:
        """The arm that the others are held against."""
        return next(arm for arm in self.arms if arm.name == self.plan["baseline"])

    @cached_property
    def judged(self) -> Judging:
        """All arms by the metric."""
        values = {arm.name: arm.values(self.metric.key) for arm in self.arms}
        apart = frozenset(arm.name for arm in self.arms if arm.facts.get("other_text"))
        return Judging(self.metric, values, self.baseline.name, apart)

    @property
    def quality(self) -> dict[str, Estimate]:
        """The metric of each arm that has a result."""
        return self.judged.quality

    @property
    def differences(self) -> dict[str, Difference | None]:
        """Paired difference of each other arm to the baseline."""
        return self.judged.differences

    def by_seed(self, name: str) -> dict[int, float]:
        """An arm's difference to the baseline on each seed that both have."""
        return self.judged.by_seed(name)

    @property
    def adjusted(self) -> dict[str, float | None]:
        """p-values of the differences after Holm's correction over arms."""
        return self.judged.adjusted

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """One verdict an arm."""
        return {arm.name: self._verdict(arm) for arm in self.arms}

    def _verdict(self, arm: Arm) -> Verdict:
        if arm.facts.get("refused"):
            return Verdict("refused", f"refused: {arm.facts['refused']}")
        reasons = [t.reason for t in self.failures if t.arm == arm.name]
        without = Verdict("failed", f"no result: {reasons[0]}") if reasons else Verdict("waiting", "no result yet")
        return self.judged.verdict(arm.name) or without

    @cached_property
    def tasks(self) -> list[Tried]:
        """The tasks that arms were tried at, in the order in which they were asked for."""
        asked = self.plan.get("tasks", {})
        return [Tried(label, figures, self.arms, self.baseline.name) for label, figures in asked.items()]

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """One row an arm, in the order of the file."""
        return [self._row(arm) for arm in self.arms]

    def _row(self, arm: Arm) -> dict[str, Any]:
        own, difference = self.quality.get(arm.name), self.differences.get(arm.name)
        low, high = (difference and difference.interval) or (None, None)
        named = {column: arm.mean(key) for column, key in COLUMNS.items()}
        tried = {
            task.key(name): arm.mean(task.key(name))
            for task in self.tasks
            for name, figure in task.figures.items()
            if figure.unit != "index"
        }
        others = tried | {key: arm.mean(key) for key in self.other_measures}
        return {
            "arm": arm.name,
            "seeds": own.n if own else 0,
            self.metric.column: own and own.mean,
            f"{self.metric.column}_half": own and own.half,
            "difference": difference and difference.mean,
            "difference_low": low,
            "difference_high": high,
            "p_adjusted": self.adjusted.get(arm.name),
            **named,
            "parameters": arm.facts.get("parameters"),
            "active_parameters": arm.facts.get("active_parameters") if self.sparse else None,
            "parameters_without_embedding": arm.facts.get("parameters_without_embedding"),
            "flops_per_token": arm.facts.get("flops_per_token"),
            "state_bytes": arm.facts.get("state_bytes"),
            **others,
            "verdict": self.verdicts[arm.name].text,
        }

    @cached_property
    def sparse(self) -> bool:
        """Whether some arm has parameters that one token does not use."""
        return any(
            arm.facts.get("active_parameters", arm.facts["parameters"]) != arm.facts["parameters"] for arm in self.arms
        )

    @cached_property
    def other_measures(self) -> list[str]:
        """Measures that are no task's and have no column of their own, in the order in which trials report them."""
        seen = {key: None for trial in self.trials if trial.result for key in trial.result["measures"]}
        tried = [task.key(name) for task in self.tasks for name in task.figures]
        known = {BITS.key, NATS.key, "validation.tokens", *COLUMNS.values(), *tried}
        return [key for key in seen if key not in known]

    @property
    def failures(self) -> list[Record]:
        """Trials that have no result, with their reasons; also those of the search."""
        return [trial for trial in self.trials if trial.state == "failed"]

    @property
    def waiting(self) -> list[Record]:
        """Trials that have not been run yet."""
        return [trial for trial in self.trials if trial.state == "waiting"]

    def stale(self, trial: Record) -> bool:
        """Whether any part of a trial was run by another version of the code than the present."""
        present = next(arm.facts["code"] for arm in self.arms if arm.name == trial.arm)
        return trial.result is not None and trial.result["code"] != [present]

    @property
    def machines(self) -> list[str]:
        """What the trials ran on: processor, devices and threads; each once."""
        found = {
            ", ".join([m["processor"], *m["devices"], plural(m["threads"], "thread")]): None
            for trial in self.trials
            if trial.result and (m := trial.result["machine"])
        }
        return list(found)

    @property
    def unmeasured(self) -> dict[str, str]:
        """Arm and measure -> why it could not be measured."""
        return {
            f"{trial.arm}, {name}": reason
            for trial in self.trials
            if trial.result
            for name, reason in trial.result["unmeasured"].items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row a trial: arm, seed, stage, tuning point, state, measures."""
        return [
            {
                "arm": t.arm,
                "seed": t.seed,
                "stage": t.stage,
                "state": t.state,
                **{f"tuned {path}": value for path, value in t.point.items()},
                **(t.result["measures"] if t.result else {}),
                "seconds": t.result["seconds"] if t.result else None,
                "older_code": self.stale(t),
                "reason": t.reason,
            }
            for t in self.trials
        ]
