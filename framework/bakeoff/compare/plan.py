"""What a comparison will run: arms matched and budgeted, seeds, the search, and what it costs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bakeoff.compare.matching import Matched, amount, as_facts, costs_of, match
from bakeoff.compare.tuning import Point, label, own_seed, points
from bakeoff.compare.words import percent
from bakeoff.data import Data
from bakeoff.errors import UserError
from bakeoff.evaluate.asking import Entry, asked
from bakeoff.evaluate.planning import vocabulary_size
from bakeoff.model.cost import Plan as Costs
from bakeoff.recipe import Comparison, Recipe
from bakeoff.registry import entry
from bakeoff.train.loggers import named_loggers
from bakeoff.train.named_runs import by_content
from bakeoff.train.provenance import code_of


@dataclass(frozen=True)
class Text:
    """What an arm reads: the vocabulary, and fingerprints of data and tokenizer once they are prepared."""

    vocabulary: int
    fingerprint: str
    tokenizer: str


@dataclass(frozen=True)
class ArmPlan:
    """One arm, ready for seeds and tuning points."""

    name: str
    recipe: Recipe
    """Matched, with the budget's steps."""
    text: Text
    costs: Costs
    steps: int
    tokens: int
    matched: Matched | None
    tasks: tuple[str, ...]
    """Names of the tasks that its trials are tried at."""
    code: str
    """Hash of the sources that run it, those of the tasks among them."""

    @property
    def flops(self) -> float | None:
        """Operations of one trial, forward and backward."""
        each = self.costs.training_flops_with(self.recipe.build("objective").forwards())
        return None if each is None else each * self.tokens


@dataclass(frozen=True)
class Trial:
    """One arm with one seed and one tuning point."""

    name: str
    arm: ArmPlan
    seed: int
    point: Point
    stage: str
    recipe: Recipe
    measures: tuple[Entry, ...]


class Plan:
    """All of a comparison before it runs."""

    def __init__(self, spec: Comparison, *, prepare: bool, progress: bool):
        self.spec = spec
        self.notes: list[str] = []
        self.asked = [each for each in asked(spec.measure) if each.task]
        self.tasks = tuple(sorted({each.task for each in self.asked if each.task}))
        self.points = points(spec.tune)
        self.searches = len(self.points) > 1
        texts = _Texts(prepare, progress)
        plain = {name: (self._budgeted(name, recipe), texts.of(recipe)) for name, recipe in spec.arms.items()}
        self.baseline = next(iter(plain))
        matched = self._matched(plain)
        self.arms = [self._arm(name, *matched[name], plain[name][1]) for name in plain]
        self.other_texts = self._validated_elsewhere(texts)
        if self.other_texts:
            self.notes.append(
                f"Validated on other text than {self.baseline}: {', '.join(self.other_texts)}. Bits per byte of other "
                "bytes say little of the models and are not compared; a task that asks all arms the same compares them."
            )

    def _budgeted(self, name: str, recipe: Recipe) -> Recipe:
        """The recipe with as many steps as the budget's tokens fill."""
        asked, step = self.spec.budget.tokens, recipe.tree["data"]["batch_tokens"]
        steps = max(1, round(asked / step))
        if steps * step != asked:
            note = f"{asked:,} tokens are no multiple of {step:,} a step: {steps:,} steps, {steps * step:,} tokens."
            self.notes += [note] if note not in self.notes else []
        found = recipe.override({"trainer.max_steps": steps}, "budget")
        if recipe.tree["checkpoint"]["every_steps"] is None:  # so that a killed trial loses a tenth at most
            found = found.override({"checkpoint.every_steps": max(1, -(-steps // 10))}, "comparison")
        return found

    def _validated_elsewhere(self, texts: _Texts) -> list[str]:
        """Arms that are validated on other text than the baseline: bytes cost what they cost."""
        first, *others = self.arms
        return [arm.name for arm in others if not texts.same_validation(first.recipe, arm.recipe)]

    def _matched(self, arms: dict[str, tuple[Recipe, Text]]) -> dict[str, tuple[Recipe, Matched | None]]:
        rule = self.spec.match
        if rule.by == "none":
            return {name: (recipe, None) for name, (recipe, _) in arms.items()}
        base, text = arms[self.baseline]
        target = amount(rule.by, costs_of(base, text.vocabulary), self.baseline)
        found: dict[str, tuple[Recipe, Matched | None]] = {}
        for name, (recipe, text) in arms.items():
            found[name] = match(name, recipe, rule, target, text.vocabulary)
            self._stays_matched(name, found[name][0], target, text.vocabulary)
        return found

    def _stays_matched(self, name: str, recipe: Recipe, target: float, vocabulary: int) -> None:
        """Raise `UserError` if a point of the search undoes the matching."""
        rule = self.spec.match
        for point in self.points if self.searches else ():
            reached = amount(rule.by, costs_of(recipe.override(point), vocabulary), name)
            if abs(reached - target) > rule.within * target:
                raise UserError(
                    f"tune: with {label(point)} arm {name} has {rule.by} {reached:,.0f}, while match holds all arms "
                    f"to {target:,.0f} within {percent(rule.within)}; tune what leaves that as it is, or match by none"
                )

    def _arm(self, name: str, recipe: Recipe, matched: Matched | None, text: Text) -> ArmPlan:
        recipe.demands()
        _known_elsewhere(name, [*recipe.components(), *self.tasks])
        steps = recipe.tree["trainer"]["max_steps"]
        costs = costs_of(recipe, text.vocabulary)
        code = digest(code_of([*recipe.components(), *self.tasks]))
        tokens = steps * recipe.tree["data"]["batch_tokens"]
        return ArmPlan(name, recipe, text, costs, steps, tokens, matched, self.tasks, code)

    @property
    def tuning_seed(self) -> int:
        """The seed of the search."""
        return own_seed(self.spec.seeds)

    def search(self, arms: Iterable[ArmPlan]) -> list[Trial]:
        """The trials of the search, arms side by side; none where there is nothing to choose."""
        if not self.searches:
            return []
        return [self._trial(arm, self.tuning_seed, p, "tune", ["validation"]) for p in self.points for arm in arms]

    def runs(self, chosen: dict[str, Point]) -> list[Trial]:
        """The reported trials of the arms that have a point, seed by seed.

        Each seed begins with another arm, so that a machine that slows down or speeds up favours none.
        """
        measures = self.spec.measure if "validation" in self.spec.measure else ["validation", *self.spec.measure]
        arms = [arm for arm in self.arms if arm.name in chosen]
        turned = (arms[i % len(arms) :] + arms[: i % len(arms)] for i in range(len(self.spec.seeds)) if arms)
        pairs = zip(self.spec.seeds, turned, strict=False)
        return [self._trial(arm, seed, chosen[arm.name], "run", measures) for seed, order in pairs for arm in order]

    def _trial(self, arm: ArmPlan, seed: int, point: Point, stage: str, measures: Iterable[Entry]) -> Trial:
        return trial(arm, seed, point, stage, measures, self.spec.name)

    def flops(self) -> Iterator[tuple[ArmPlan, float | None]]:
        """Operations of all trials of each arm."""
        trials = len(self.spec.seeds) + (len(self.points) if self.searches else 0)
        for arm in self.arms:
            yield arm, None if arm.flops is None else arm.flops * trials

    def document(self) -> dict[str, Any]:
        """The plan for the store, as plain values."""
        spec = self.spec
        return {
            "name": spec.name,
            "baseline": self.baseline,
            "arms": [_facts(arm) | {"other_text": arm.name in self.other_texts} for arm in self.arms],
            "seeds": spec.seeds,
            "match": dataclasses.asdict(spec.match),
            "budget": dataclasses.asdict(spec.budget),
            "tuning": {"grid": spec.tune, "seed": self.tuning_seed} if self.searches else None,
            "measures": spec.measure,
            "tasks": {
                each.label: {name: figure._asdict() for name, figure in each.figures.items()} for each in self.asked
            },
            "notes": self.notes,
            "trials": [],
        }


class _Texts:
    """Data of the arms, prepared once each."""

    def __init__(self, prepare: bool, progress: bool):
        self.prepare, self.progress = prepare, progress
        self.known: dict[str, Text] = {}
        self.validated: dict[str, str] = {}

    def of(self, recipe: Recipe) -> Text:
        key = json.dumps(recipe.tree["data"], sort_keys=True, default=str)
        if key not in self.known:
            data: Data = recipe.build("data")
            tokenizer = digest(recipe.tree["data"]["tokenizer"])
            if self.prepare:
                data.prepare(progress=self.progress).find_neighbours()
                self.known[key] = Text(data.vocab_size, data.fingerprint, tokenizer)
            else:
                self.known[key] = Text(vocabulary_size(recipe, data), "not prepared", tokenizer)
        return self.known[key]

    def same_validation(self, one: Recipe, other: Recipe) -> bool:
        """Whether two recipes are validated on the same text; looked up where corpora differ and may be prepared."""
        ways = [(r.tree["data"].get("template"), r.build("objective").reads_dialogues) for r in (one, other)]
        if ways[0] != ways[1]:
            return False
        if one.tree["data"]["corpus"] == other.tree["data"]["corpus"]:
            return True
        return self.prepare and self._validation(one) == self._validation(other)

    def _validation(self, recipe: Recipe) -> str:
        """A hash of the validation split, for recipes whose objectives read it alike."""
        key = json.dumps(recipe.tree["data"]["corpus"], sort_keys=True, default=str)
        if key not in self.validated:
            hashed = hashlib.sha256()
            for said in _validated_on(recipe):
                hashed.update(json.dumps(said).encode() + b"\n")
            self.validated[key] = hashed.hexdigest()
        return self.validated[key]


def _validated_on(recipe: Recipe) -> Iterator[Any]:
    """What the validation split holds, as plain values."""
    corpus = recipe.build("data").corpus
    if recipe.build("objective").reads_dialogues:
        for each in corpus.dialogues("validation"):
            yield [each.prompt, each.completion]
    else:
        yield from corpus.documents("validation")


def trial(arm: ArmPlan, seed: int, point: Point, stage: str, measures: Iterable[Entry], group: str) -> Trial:
    """A trial of comparison `group`, named after its arm, its seed and a hash of all that decides its result."""
    title = f"{arm.name}, seed {seed}"
    recipe = arm.recipe.override(point, "tune").override({"seed": seed}, "seeds").named(title)
    unlogged = recipe.override({"trainer.logger": None})
    key = digest([unlogged.hash(), by_content(list(measures)), arm.text.fingerprint])
    name = f"{plain(arm.name)}-seed{seed}-{key[:8]}"
    recipe = recipe.override(named_loggers(recipe, group, title, name), "comparison")
    return Trial(name, arm, seed, point, stage, recipe, tuple(measures))


def comparison_hash(spec: Comparison) -> str:
    """12 hexadecimal digits of all that decides the comparison's numbers; not its name, nor where it runs."""
    arms = {name: recipe.hash() for name, recipe in spec.arms.items()}
    measures = by_content(spec.measure)
    rules = [dataclasses.asdict(spec.match), dataclasses.asdict(spec.budget), spec.tune, spec.seeds, measures]
    return digest([list(arms.items()), rules])


def check_names(spec: Comparison) -> None:
    """Raise `UserError` if two arms would share a folder."""
    folders = [plain(name).lower() for name in spec.arms]
    doubled = sorted({name for name, folder in zip(spec.arms, folders, strict=True) if folders.count(folder) > 1})
    if doubled:
        raise UserError(f"arms {', '.join(doubled)}: their names are the same but for signs or case; rename one")


def _known_elsewhere(name: str, components: Iterable[str]) -> None:
    """Raise `UserError` if a component is registered in this process alone, and not by the recipe's `imports`."""
    for owner in map(entry, components):
        module = owner.target.partition(":")[0]
        if owner.package.startswith("script ") and not module.startswith("bakeoff_script_"):
            raise UserError(
                f"arm {name}: {owner.kind} '{owner.name}' is registered in this process alone (by {module}), but "
                f"trials run in processes of their own: write it to a file and name that under imports"
            )


def plain(name: str) -> str:
    """A name as part of a path."""
    return re.sub(r"[^\w.-]+", "_", name)


def digest(content: Any) -> str:
    """12 hexadecimal digits of a plain nest."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _facts(arm: ArmPlan) -> dict[str, Any]:
    costs = arm.costs
    return {
        "name": arm.name,
        "steps": arm.steps,
        "tokens": arm.tokens,
        "parameters": costs.parameters.total,
        "active_parameters": costs.parameters.active,
        "parameters_without_embedding": costs.parameters.without_embeddings,
        "flops_per_token": costs.whole.flops,
        "state_bytes": costs.whole.state,
        "matched": None if arm.matched is None else as_facts(arm.matched),
        "refused": None,
        "tokenizer": arm.text.tokenizer,
        "data": arm.text.fingerprint,
        "tree": arm.recipe.tree,
        "full": arm.recipe.full,
        "code": arm.code,
    }
