"""One recipe: read, laid over what it extends, overridden, checked, built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bakeoff.errors import RecipeError
from bakeoff.recipe import saving, scripts
from bakeoff.recipe.checker import Checker
from bakeoff.recipe.factory import Factory, make
from bakeoff.recipe.files import expand, locate, parent_of, stack
from bakeoff.recipe.layers import Tree
from bakeoff.recipe.node import short_path
from bakeoff.recipe.overriding import overrides
from bakeoff.recipe.places import check_keys, place_of
from bakeoff.recipe.reading import Layer
from bakeoff.recipe.schema import DEFAULTS, FOLLOWING, SEEDS, check_sections, load, model_arguments
from bakeoff.recipe.slips import lines, report
from bakeoff.recipe.trainer import OWN
from bakeoff.registry import name_of


class Recipe:
    """All that determines one training run. Made by `bakeoff.recipe(…)`; never changed, only overridden into another.

    Attributes
    ----------
    path : the file it was read from, or None.
    """

    def __init__(self, laid: Tree, path: Path | None, name: str):
        self._laid, self.path, self._name = laid, path, name
        self._values = laid.resolved()
        self._checked: dict[bool, tuple[dict[str, Any], Checker]] = {}

    @property
    def name(self) -> str:
        """What the recipe calls itself, else its file's name."""
        named = self._values.get("name")
        return named if isinstance(named, str) else self._name

    @property
    def tree(self) -> dict[str, Any]:
        """The checked recipe in the short form, `{use: NAME, …}`, interpolated, defaults of sections filled in."""
        return self._check(fill=False)[0]

    @property
    def stateful(self) -> bool:
        """Whether states go on from one training window to the next (`trainer.stateful`)."""
        return bool(self.tree["trainer"].get("stateful"))

    @property
    def recompute(self) -> str:
        """What of the blocks is computed anew in backward: "none", "selective" or "full" (`trainer.recompute`)."""
        return self.tree["trainer"].get("recompute") or "none"

    @property
    def fp8(self) -> bool:
        """Whether the blocks' linear layers multiply in float8 (`trainer.fp8`)."""
        return bool(self.tree["trainer"].get("fp8"))

    @property
    def full(self) -> dict[str, Any]:
        """The same with the default of every argument of every part."""
        return self._check(fill=True)[0]

    @property
    def sources(self) -> dict[str, str]:
        """Dotted path -> "file:line", "override", "arm NAME" or "default", for every value of `full`."""
        paths = saving.paths(self.full)
        return {path: self._source(path) for path in paths}

    @property
    def scripts(self) -> list[str]:
        """The scripts of `imports`, without running them."""
        return [path for path, _ in scripts.listed(self._values)]

    def check(self) -> Recipe:
        """Raise `RecipeError` with every slip of the recipe, each with key, place and near miss; else return itself."""
        self._check(fill=False)
        return self

    def demands(self) -> Any:
        """The model on the meta device, if its parts and the machine do what the run asks; else an error.

        Raises `CapabilityError` naming part, demand and alternatives, and `RecipeError` where a part refuses its
        arguments or Lightning would not do what `trainer:` says.
        """
        from bakeoff.recipe.demands import check_demands

        return check_demands(self)

    def path_of(self, cls: type) -> str | None:
        """The path of the first node of a class, defaults included; None where no node names it."""
        classes = self._check(fill=True)[1].classes
        return next((path for path, held in classes.items() if held is cls), None)

    def place(self, path: str) -> str:
        """What a message adds to a path: the file and line where it, or what it stands in, was written."""
        place = place_of(self._laid.places, path)
        return f" ({place})" if place and place != "default" else ""

    def extended_by(self, path: str) -> str | None:
        """The file that the one in which a path was written extends, the last where it extends several; else None."""
        return parent_of((place_of(self._laid.places, path) or "").rpartition(":")[0])

    def slips(self) -> list[str]:
        """All that `check` would say, one line each, without raising."""
        try:
            self.check()
        except RecipeError as error:
            if False not in self._checked:  # a script of `imports` cannot be run
                return [str(error)]
            checker = self._checked[False][1]
            return lines(checker.slips, self._laid.places, checker.valid)
        return []

    def paths_ending(self, words: str) -> list[str]:
        """The paths of all values whose last words are these, such as "feed_forward.width"; defaults count."""
        words = short_path(words)
        return [path for path in saving.paths(self.full) if path == words or path.endswith(f".{words}")]

    def override(self, changes: Iterable[str] | Mapping[str, Any], source: str = "override") -> Recipe:
        """Another recipe: this one with values set by path; a changed class drops the arguments of the old one."""
        laid = self._laid.copy()
        for path, value in overrides(changes).items():
            laid.set(path, value, source)
        return Recipe(laid, self.path, self._name)

    def with_sections(self, layers: Iterable[Layer]) -> Recipe:
        """Another recipe: the sections that these layers speak of are theirs, all others are this one's."""
        laid = self._laid.copy()
        for section in {key: None for layer in layers for key in layer.values}:
            laid.set(section, None, "default")
            laid.set(section, DEFAULTS.get(section), "default")
        for layer in layers:
            laid.lay(layer.values, layer.places)
        return Recipe(laid, self.path, self._name)

    def named(self, name: str) -> Recipe:
        """The same recipe under another name."""
        return self.override({"name": name}, "default")

    def build(self, path: str, **links: Any) -> Any:
        """What stands at a path: an object, or the factory that its owner calls.

        "model" is linked: `build("model", vocab_size=…)`, and `max_length=…` where the recipe's data does not say it.
        "trainer" gives the keyword arguments of Lightning's Trainer.
        """
        tree, checker = self._check(fill=False)
        value: Any = tree
        for word in path.split("."):
            value = value[int(word)] if isinstance(value, list) else value[word]
        if path == "model":
            return self._model(value, checker, links)
        if path == "trainer":
            value = {key: item for key, item in value.items() if key not in OWN}
        made = make(value, path, checker.makers)
        return load("bakeoff.data:Data")(**made, **links) if path == "data" else made

    def seed_of(self, purpose: str) -> int:
        """The seed of "initialisation", "data", "dropout" or "sampling": set apart, or derived from `seed`."""
        if purpose not in SEEDS:
            raise ValueError(f"'{purpose}' is no seed; seeds: {', '.join(SEEDS)}")
        seed = self.tree["seed"]
        own = seed.get(purpose) if isinstance(seed, dict) else None
        if own is not None:
            return int(own)
        base = 0 if isinstance(seed, dict) else seed
        return int.from_bytes(hashlib.blake2b(f"{base}:{purpose}".encode(), digest_size=4).digest(), "little")

    def saved(self) -> dict[str, Any]:
        """The whole recipe in the long form: class paths, every default, explicit nulls, versions of the packages."""
        return saving.saved(*self._check(fill=True))

    def hash(self) -> str:
        """12 hexadecimal digits of all that decides the run, not its name: every value, the content of scripts, and
        that of the weights of finished runs that it begins from or names elsewhere."""
        tree = {key: value for key, value in self.full.items() if key not in ("name", "weights")}
        for section in ("trained", "adapters"):
            if tree[section] is None:
                del tree[section]
        if self.full["weights"] is not None:
            tree["weights"] = load("bakeoff.train.weights:source_of")(self).digest
        tree = load("bakeoff.train.named_runs:by_content")(tree)
        tree["imports"] = sorted(scripts.script_hash(Path(path)) for path in self.scripts)
        return hashlib.sha256(json.dumps(tree).encode()).hexdigest()[:12]

    def components(self) -> list[str]:
        """Names of all registered components that the recipe uses, defaults among them."""
        named = {name_of(cls) for cls in self._check(fill=True)[1].classes.values()}
        return sorted(name for name in named if name is not None)

    def print(self, console: Any = None) -> None:
        """Write the whole recipe with the source of each value; `console` is a rich one."""
        from bakeoff.recipe.showing import show

        show(self, console)

    def fit(self, **arguments: Any) -> Any:
        """Train: `bakeoff.train.fit(recipe, …)`."""
        return load("bakeoff.train:fit")(self, **arguments)

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, {str(self.path) if self.path else 'from values'})"

    def _source(self, path: str) -> str:
        """Where a value was written, itself or the interpolation that it comes by."""
        held = self._laid.raw(path) is not None
        return self._laid.places.get(path) or (place_of(self._laid.places, path) if held else None) or "default"

    def _check(self, fill: bool) -> tuple[dict[str, Any], Checker]:
        if fill not in self._checked:
            scripts.import_scripts(self._values)
            checker = Checker(fill)
            tree = check_sections({**self._values, "name": self._values.get("name") or self._name}, checker)
            self._checked[fill] = (tree, checker)
        tree, checker = self._checked[fill]
        report(lines(checker.slips, self._laid.places, checker.valid), str(self.path.name if self.path else self.name))
        return tree, checker

    def _model(self, value: Mapping[str, Any], checker: Checker, links: Mapping[str, Any]) -> Any:
        backbone = checker.classes["model"]
        own = model_arguments(backbone)[1]
        made = {key: make(item, f"model.{key}", checker.makers) for key, item in value.items() if key != "use"}
        inner = Factory(backbone, {key: item for key, item in made.items() if key not in own})
        following = {"max_length": self.tree["data"]["length"], **links}
        given = {key: item for key, item in made.items() if key in own and (key not in FOLLOWING or item is not None)}
        if given.get("vocab_size", links["vocab_size"]) < links["vocab_size"]:
            raise RecipeError(
                f"model.vocab_size{self.place('model.vocab_size')}: is {given['vocab_size']}, and the tokenizer has "
                f"{links['vocab_size']} ids; it must be at least as many, or null"
            )
        model = load("bakeoff.model:LanguageModel")(**{**following, **given}, backbone=inner)
        self._choose_trained(model)
        return model

    def _choose_trained(self, model: Any) -> None:
        """Add the adapters that the recipe wants, and let only these and what `trained` names be trained."""
        section, patterns = self.tree["adapters"], self.tree["trained"]
        if section is not None:
            try:
                load("bakeoff.parts.adapters:Adapters")(**section).add_to(model)
            except ValueError as error:
                raise RecipeError(f"adapters{self.place('adapters')}: {error}") from None
        if section is not None or patterns is not None:
            added = load("bakeoff.parts.adapters:adapter_parameters")(model).values()
            try:
                load("bakeoff.model.trained:train_only")(model, patterns or (), added)
            except ValueError as error:
                raise RecipeError(f"trained{self.place('trained')}: {error}") from None


def recipe(source: str | Path | Mapping[str, Any], overrides: Iterable[str] | Mapping[str, Any] = ()) -> Recipe:
    """The recipe of a YAML file (`bakeoff:models/x.yaml` for one that is shipped) or of a mapping.

    `overrides` are `path=value` lines, or a mapping of paths to values. Raises `RecipeError` if it cannot be read or
    laid together; `Recipe.check` says whether it holds.
    """
    layers, path, name = gathered(source, Path.cwd())
    laid = Tree()
    laid.lay(DEFAULTS, "default")
    for layer in layers:
        laid.lay(layer.values, layer.places)
    made = Recipe(laid, path, name)
    return made.override(overrides) if overrides else made


def gathered(source: str | Path | Mapping[str, Any], folder: Path) -> tuple[list[Layer], Path | None, str]:
    """The layers of a file or mapping, the lowest first; the file; and the name that it gives the recipe."""
    path: Path | None = None
    if isinstance(source, Mapping):
        layers, name = expand(Layer(dict(source), {}), folder), "recipe"
    else:
        path, shown = locate(source, folder)
        layers, name = stack(path, shown), path.stem
    for layer in layers:
        check_keys(layer.values, layer.places)
    return layers, path, name
