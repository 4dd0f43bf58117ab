"""`compare`: plan, probe, search, train, report; killed at any moment, the same call continues."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from bakeoff.compare import report, table
from bakeoff.compare.announcing import announce
from bakeoff.compare.causality import probe
from bakeoff.compare.compared import Compared
from bakeoff.compare.folders import prepare_folder
from bakeoff.compare.plan import ArmPlan, Plan, Trial, check_names, comparison_hash
from bakeoff.compare.results import BITS, Results
from bakeoff.compare.store import Record, Store, only_one
from bakeoff.compare.tuning import Point, choose
from bakeoff.compare.watching import watch
from bakeoff.compare.words import plural
from bakeoff.parts.files import read_json
from bakeoff.recipe import Comparison, comparison
from bakeoff.train.provenance import git_commit, machine


def compare(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    folder: Path | str | None = None,
    dry_run: bool = False,
    progress: bool = True,
    retry: bool = False,
) -> Compared:
    """Train all arms of a comparison on all seeds, and say which is better, by how much, at what cost.

    Parameters
    ----------
    source : a comparison's file, or its content as a mapping. overrides : `path=value` lines, or a mapping.
    folder : by default `runs/<name>/<hash of the comparison>`: the same call again continues with what is missing,
        and does nothing but the report when nothing is.
    dry_run : print the plan and stop. progress : print plan, progress and table. retry : run failed trials again.

    Raises `UserError` for what does not fit, before anything runs. A trial that fails is reported, the rest go on.
    """
    spec = comparison(source, overrides)
    check_names(spec)
    console = Console() if progress else None
    plan = Plan(spec, prepare=not dry_run, progress=progress)
    if console:
        announce(plan, console)
    place = Path(folder) if folder is not None else Path("runs") / spec.name / comparison_hash(spec)
    if dry_run:
        return Compared(place, Results(plan.document() | {"code": "", "executor": {}}, []))
    with only_one(place, lambda message: _say(console, message)):
        store = Store(place)
        try:
            run = _Run(plan, store, place, console, retry)
            store.note("plan", run.document(_command(source, overrides, folder)))
            run.all()
            results = Results.of(store)
        except KeyboardInterrupt:
            _say(console, "Stopped; the same command continues with what is missing.")
            raise
        finally:
            store.close()
        page = report.write(results, place)
    if console:
        table.show(results, console)
        _say(console, f"Report: {page}")
    return Compared(place, results)


class _Run:
    """The trials of one plan, entered in one store."""

    def __init__(self, plan: Plan, store: Store, place: Path, console: Console | None, retry: bool):
        self.plan, self.store, self.place, self.console, self.retry = plan, store, place, console, retry
        self.facts: dict[str, Any] = {}
        self.layers: dict[Any, Any] = {}

    def document(self, command: str) -> dict[str, Any]:
        """The plan with what is known of this machine and this code, for the report."""
        before = self.store.noted("plan", {})
        executor = self.plan.spec.executor
        kept = {key: getattr(executor, key) for key in ("slots", "threads") if hasattr(executor, key)}
        self.facts = self.plan.document() | {
            "executor": self.plan.spec.sections["executor"] | kept,
            "environment": _environment(self.plan.spec),
            "data": _data(self.plan),
            "code": ", ".join(sorted({arm.code for arm in self.plan.arms})),
            "command": command,
            "begun": before.get("begun", time.strftime("%Y-%m-%d %H:%M")),
        }
        return self.facts

    def all(self) -> None:
        """Probe, search, run."""
        arms = self._causal()
        search = self.plan.search(arms)
        self._trials(search)
        chosen = self._chosen(arms)
        self._trials(search, self.plan.runs(chosen))

    def _causal(self) -> list[ArmPlan]:
        """The arms that look at no later token; the others are marked as refused."""
        causal = []
        for arm, facts in zip(self.plan.arms, self.facts["arms"], strict=True):
            facts["refused"] = self._probed(arm)
            if facts["refused"] is None:
                causal.append(arm)
            else:
                _say(self.console, f"✗ {arm.name}: refused: {facts['refused']}")
        return causal

    def _probed(self, arm: ArmPlan) -> str | None:
        """What the probe found in the arm, now or with the same code before."""
        key = f"causality {arm.recipe.hash()} {arm.code}"
        found = self.store.noted(key)
        if found is None:
            found = {"leak": probe(arm.recipe, self.layers)}
            self.store.note(key, found)
        return found["leak"]

    def _chosen(self, arms: list[ArmPlan]) -> dict[str, Point]:
        """Each arm's tuning point; an arm whose search has no result at all has none."""
        if not self.plan.searches:
            return {arm.name: self.plan.points[0] for arm in arms}
        results = Results.of(self.store)
        found = {arm.name: choose(results, arm.name) for arm in arms}
        return {name: point for name, point in found.items() if point is not None}

    def _trials(self, *stages: list[Trial]) -> None:
        """Enter the trials of all stages, and run what is missing of the last."""
        self.facts["trials"] = [trial.name for stage in stages for trial in stage]
        self.store.note("plan", self.facts)
        trials = {trial.name: trial for trial in stages[-1]}
        for trial in trials.values():
            self.store.add(Record(trial.name, trial.arm.name, trial.seed, trial.stage, trial.point, "waiting"))
        if self.retry:
            for record in self.store.trials():
                if record.name in trials and record.state == "failed":
                    self.store.retry(record.name)
        waiting = {record.name for record in self.store.trials() if record.state == "waiting"}
        missing = self._taken_in([trial for trial in trials.values() if trial.name in waiting])
        if missing:
            self._execute(missing, len(trials) - len(missing))

    def _taken_in(self, missing: list[Trial]) -> list[Trial]:
        """What is still missing once results that lie there (of trials that outlived their comparison) are entered."""
        left = []
        for trial in missing:
            path = self.place / "trials" / trial.name / "result.json"
            try:
                self.store.finish(trial.name, read_json(path), None)
            except (OSError, ValueError):  # none yet, or damaged: the trial is run again
                left.append(trial)
        return left

    def _execute(self, trials: list[Trial], done: int) -> None:
        if done:
            _say(self.console, f"{plural(done, 'trial')} done before; {len(trials)} to go.")
        executor = self.plan.spec.executor
        folders = [prepare_folder(trial, self.place / "trials" / trial.name) for trial in trials]
        with watch(trials, getattr(executor, "slots", 1), BITS.unit, self.console) as watching:
            for outcome in executor.run(folders, watching.progress):
                self.store.finish(outcome.trial, outcome.result, outcome.reason)
                quality = outcome.result["measures"].get(BITS.key) if outcome.result else None
                watching.outcome(outcome, quality)


def _environment(spec: Comparison) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for recipe in spec.arms.values():
        found |= recipe.saved()["versions"]
    of_machine = {key: value for key, value in machine().items() if value not in (None, [])}
    commit = git_commit(Path(__file__).parent)
    return found | of_machine | ({"commit": commit} if commit else {})


def _data(plan: Plan) -> dict[str, str]:
    """Corpus, tokenizer and fingerprint; where arms differ, all of them."""
    found: dict[str, dict[str, None]] = {"corpus": {}, "tokenizer": {}, "fingerprint": {}}
    for arm in plan.arms:
        section = arm.recipe.tree["data"]
        found["corpus"][_words(section["corpus"])] = None
        found["tokenizer"][f"{_words(section['tokenizer'])}, {arm.text.vocabulary} ids"] = None
        found["fingerprint"][arm.text.fingerprint] = None
    return {key: "; ".join(values) for key, values in found.items()}


def _words(node: Mapping[str, Any]) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in node.items() if key != "use")
    return f"{node['use']} ({rest})" if rest else str(node["use"])


def _command(source: Any, overrides: Iterable[str] | Mapping[str, Any], folder: Path | str | None) -> str:
    if isinstance(source, Mapping):
        return "bakeoff.compare(…) with the mapping that was given; see recipe.yaml of each trial"
    pairs = [f"{k}={v}" for k, v in overrides.items()] if isinstance(overrides, Mapping) else list(overrides)
    words = ["bakeoff", "compare", str(source), *pairs]
    return shlex.join([*words, "--folder", str(folder)] if folder is not None else words)


def _say(console: Console | None, message: str) -> None:
    if console:
        console.print(Text(message), soft_wrap=True)
