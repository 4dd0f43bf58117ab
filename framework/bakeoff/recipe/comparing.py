"""A comparison: a base, arms, and how they are matched, tuned, repeated and measured; as strict as a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bakeoff.errors import RecipeError, UserError
from bakeoff.recipe.arms import Changes, arm_recipes, base_recipe, sort_changes
from bakeoff.recipe.checker import Checker
from bakeoff.recipe.factory import make
from bakeoff.recipe.files import absolute_scripts, locate
from bakeoff.recipe.layers import Tree
from bakeoff.recipe.node import short_path, shorten
from bakeoff.recipe.places import check_keys
from bakeoff.recipe.reading import Layer, read
from bakeoff.recipe.schema import load
from bakeoff.recipe.signature import Parameter, Signature
from bakeoff.recipe.single import Recipe
from bakeoff.recipe.slips import lines, near, report
from bakeoff.recipe.wanted import Wanted
from bakeoff.registry import interface_of


@dataclass(frozen=True, kw_only=True)
class Match:
    """What arms are made equal in, within which relative tolerance, by which setting (the last words of its path).

    Parameters are counted without embeddings; active ones are those that one token uses.
    """

    by: Literal["parameters", "active_parameters", "flops", "state", "none"] = "none"
    within: float = 0.02
    adjust: str | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What every arm is given."""

    tokens: int


_TYPES = {
    "name": str,
    "match": Match,
    "budget": Budget,
    "tune": dict[str, list[Any]],
    "seeds": list[int],
    "measure": list[str | dict[str, Any]],
    "executor": Any,
}
#: The sections of a comparison beside base, arms and imports.
_OWN = Signature({name: Parameter(name, annotation) for name, annotation in _TYPES.items()})
_DEFAULTS: dict[str, Any] = {
    "match": {},
    "seeds": [0, 1, 2],
    "measure": ["validation", "throughput", "decode", "memory"],
    "executor": {"use": "local"},
}


class Comparison:
    """A checked comparison.

    Attributes
    ----------
    path : the file it was read from, or None. name : what it is called.
    base : the recipe that arms are made of. arms : name -> the whole recipe of each; the first is the baseline.
    match, budget : see `Match`, `Budget`. tune : setting -> the values that every arm is tried with.
    seeds : the paired seeds. measure : names of measures and tasks, or tasks with arguments.
    sections : all of these as a file holds them.
    """

    def __init__(self, path: Path | None, base: Recipe, arms: dict[str, Recipe], sections: Mapping[str, Any]):
        checker = Checker()
        checked = check_own(checker, sections)
        self.path, self.base, self.arms, self.sections = path, base, arms, checked
        self.name: str = checked["name"]
        self.match, self.budget = Match(**checked["match"]), Budget(**checked["budget"])
        self.tune: dict[str, list[Any]] = checked["tune"]
        self.seeds: list[int] = checked["seeds"]
        self.measure: list[str | dict[str, Any]] = checked["measure"]
        self._makers = checker.makers

    @cached_property
    def executor(self) -> Any:
        """Where the trials run, built when it is first asked for."""
        return make(self.sections["executor"], "executor", self._makers)


def comparison(source: str | Path | Mapping[str, Any], overrides: Iterable[str] | Mapping[str, Any] = ()) -> Comparison:
    """The comparison of a YAML file or mapping, arms resolved to whole recipes and checked.

    Overrides go by path: into a section (`budget.tokens=1e6`), one arm (`arms.mamba2.model.depth=3`), or, where they
    name a section of a recipe (`model.depth=2`), into every arm. Raises `RecipeError` with all slips.
    """
    layer, path, folder = _opened(source)
    changes = sort_changes(overrides)
    own, sections = _sections(layer, changes)
    name = str(sections.get("name") or (path.stem if path else "comparison"))
    sections = {**sections, "name": name}
    base = base_recipe(layer, folder)
    arms = arm_recipes(layer, folder, base, changes)
    report(_slips(sections, {**layer.places, **own.places}, arms, changes), path.name if path else name)
    return Comparison(path, base, arms, sections)


def is_comparison(source: str | Path) -> bool:
    """Whether a file is a comparison: it has arms, or a base for them."""
    path, shown = locate(source, Path.cwd())
    return bool({"arms", "base"} & set(read(path, shown).values))


def check_own(checker: Checker, sections: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison's own sections as they are used; slips go to the checker."""
    known = ("base", "arms", "imports", *_TYPES)
    for key in [key for key in sections if key not in known]:
        hint = near(key, known)
        checker.slip(key, f"a comparison has no section '{key}'{hint}", None if hint else key)
    checked = checker.arguments({k: v for k, v in sections.items() if k in _TYPES}, _OWN, "", "comparison")
    checked["executor"] = checker.node(checked.get("executor"), Wanted(interface_of("executor")), "executor")
    return checked


def _opened(source: str | Path | Mapping[str, Any]) -> tuple[Layer, Path | None, Path]:
    if isinstance(source, Mapping):
        layer, path, folder = Layer(dict(source), {}), None, Path.cwd()
    else:
        path, shown = locate(source, Path.cwd())
        layer, folder = read(path, shown), path.parent
        if not {"arms", "base"} & set(layer.values):
            raise RecipeError(
                f"{shown}: has no arms, so it is no comparison; train a recipe with `bakeoff fit {shown}`"
            )
    values = absolute_scripts(shorten(layer.values, "", layer.places), folder)
    return Layer(values, layer.places), path, folder


def _sections(layer: Layer, changes: Changes) -> tuple[Tree, dict[str, Any]]:
    """The comparison's own sections: defaults, what the file says, overrides. Paths to tune are keys with dots."""
    held = {key: value for key, value in layer.values.items() if key not in ("base", "arms", "imports", "tune")}
    check_keys(held, layer.places)
    own = Tree()
    own.lay(_DEFAULTS, "default")
    own.lay(held, layer.places)
    tune = changes.sections.pop("tune", layer.values.get("tune")) or {}
    for key, value in changes.sections.items():
        own.set(key, value, "override")
    if isinstance(tune, Mapping):
        tune = {short_path(path): values for path, values in {**tune, **changes.tune}.items()}
    return own, {**own.resolved(), "tune": tune}


def _slips(
    sections: Mapping[str, Any], places: Mapping[str, str], arms: Mapping[str, Recipe], changes: Changes
) -> list[str]:
    """All slips: of the comparison's own sections, of arms, and of what tunes or matches them."""
    checker = Checker()
    checked = check_own(checker, sections)
    for arm in [arm for arm in changes.arms if arm not in arms]:
        checker.slip(f"arms.{arm}", f"there is no arm '{arm}'{near(arm, arms)}")
    seeds = checked.get("seeds")
    if isinstance(seeds, list) and (not seeds or len(set(map(str, seeds))) < len(seeds)):
        checker.slip("seeds", "takes different whole numbers, at least one")
    per_arm = {name: recipe.slips() for name, recipe in arms.items()}
    _measured(checker, checked.get("measure"))
    found = lines(checker.slips, places, checker.valid)
    if not any(per_arm.values()) and not found:
        per_arm = {name: _out_of_reach(recipe, checked) for name, recipe in arms.items()}
    return found + _grouped(per_arm)


def _measured(checker: Checker, entries: Any) -> None:
    """A slip for each entry that names no measure and no task, or a task with arguments that it does not take."""
    asked = load("bakeoff.evaluate:asked")
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        try:
            asked([entry])
        except UserError as error:
            checker.slip(f"measure.{index}", str(error))
    if isinstance(entries, list) and not checker.slips:
        try:
            asked(entries)
        except UserError as error:
            checker.slip("measure", str(error))


def _grouped(per_arm: Mapping[str, list[str]]) -> list[str]:
    """Each line once, with the arms that it stands in."""
    where: dict[str, list[str]] = {}
    for name, found in per_arm.items():
        for line in found:
            where.setdefault(line, []).append(name)
    return [f"arm {', '.join(n)}: {line}" if len(n) < len(per_arm) else line for line, n in where.items()]


def _out_of_reach(recipe: Recipe, checked: Mapping[str, Any]) -> list[str]:
    """What tuning or matching would set in an arm that has no such setting."""
    found: list[str] = []
    for path, tried in checked["tune"].items():
        if not tried:
            found.append(f"tune.{path}: is an empty list; it takes the values to try")
        for value in tried:
            found += [line for line in recipe.override({path: value}, "tune").slips() if line not in found]
    adjust = checked["match"].get("adjust")
    if adjust and checked["match"].get("by", "none") != "none" and not recipe.paths_ending(adjust):
        found.append(f"match.adjust: nothing is called '{adjust}' in this arm")
    return found
