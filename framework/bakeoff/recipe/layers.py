"""Files and overrides laid over each other: `extends`, `path=value`, interpolation; each value keeps its source."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bakeoff.errors import RecipeError
from bakeoff.recipe.node import short_name, short_path, shorten, shorten_places
from bakeoff.recipe.reading import MAX_VALUES, Layer, join, parse_value, read

_KEY = re.compile(r"[\w\-/ ]+")
_INTERPOLATION = re.compile(r"\$\{([\w.\-]+)\}")


class Tree:
    """A recipe in the making: values, and where each of them comes from."""

    def __init__(self) -> None:
        self.config: DictConfig = OmegaConf.create({})
        self.places: dict[str, str] = {}

    def lay(self, values: Mapping[str, Any], places: Mapping[str, str] | str) -> None:
        """Lay a layer on top: mappings merge key by key, unless they name another class; all else replaces.

        Only `imports` add up: what stands below needs its scripts.
        """
        for key, value in values.items():
            if key == "imports" and isinstance(value, list):
                below = OmegaConf.to_container(self.config).get(key) or []  # type: ignore[union-attr]
                value = [*below, *(script for script in value if script not in below)]
            self.set(key, value, places)

    def set(self, path: str, value: Any, places: Mapping[str, str] | str) -> None:
        """Lay one value at a path. Another class in a node drops the arguments of the old one."""
        parent, _, last = path.rpartition(".")
        self._write_out(path if isinstance(value, Mapping) else parent)
        if last == "use" and self._names_another(parent, {"use": value}):
            self._put(parent, {"use": value}, places)
            return
        both = isinstance(value, Mapping) and isinstance(self.raw(path), DictConfig)
        if not both or self._names_another(path, value):
            self._put(path, value, places)
            return
        self.places[path] = _place(places, path)
        for key in sorted(value, key="use".__ne__):
            self.set(join(path, key), value[key], places)

    def resolved(self) -> dict[str, Any]:
        """Plain values, every interpolation filled in."""
        _bounded(OmegaConf.to_container(self.config, resolve=False), self.places)
        try:
            return OmegaConf.to_container(self.config, resolve=True)  # type: ignore[return-value]
        except (OmegaConfBaseException, RecursionError) as error:
            path = str(getattr(error, "full_key", "") or "")
            raise RecipeError(f"{path}{_at(self.places, path)}: {str(error).partition(chr(10))[0]}") from None

    def raw(self, path: str) -> Any:
        """What was written at a path, interpolations filled in; None where nothing was."""
        return OmegaConf.select(self.config, path, throw_on_resolution_failure=False)

    def copy(self) -> Tree:
        """A tree of its own, for another set of overrides."""
        other = Tree()
        other.config, other.places = copy.deepcopy(self.config), dict(self.places)
        return other

    def _write_out(self, path: str) -> None:
        """Write out every interpolation that a path goes through, since what it stands for is about to differ there."""
        parent: Any = self.config
        inner = ""
        for word in path.split(".") if path else ():
            inner = join(inner, word)
            held = self.raw(inner)
            if not OmegaConf.is_config(held):
                return
            if OmegaConf.is_interpolation(parent, int(word) if isinstance(parent, ListConfig) else word):
                OmegaConf.update(self.config, inner, OmegaConf.to_container(held, resolve=False), merge=False)
            parent = self.raw(inner)

    def _names_another(self, path: str, value: Mapping[str, Any]) -> bool:
        node = self.raw(path) if path else None
        return isinstance(node, DictConfig) and "use" in value and node.get("use") != value["use"]

    def _put(self, path: str, value: Any, places: Mapping[str, str] | str) -> None:
        self._check_lists(path, places)
        try:
            OmegaConf.update(self.config, path, value, merge=False, force_add=True)
        except (OmegaConfBaseException, ValueError) as error:
            raise RecipeError(f"{path}{_at(places, path)}: {str(error).partition(chr(10))[0]}") from None
        inside = f"{path}."
        self.places = {p: place for p, place in self.places.items() if p != path and not p.startswith(inside)}
        self.places |= {p: _place(places, p) for p in _inner_paths(value, path)}

    def _check_lists(self, path: str, places: Mapping[str, str] | str) -> None:
        words = path.split(".")
        for i in range(1, len(words)):
            held = OmegaConf.select(self.config, ".".join(words[:i]), throw_on_resolution_failure=False)
            if isinstance(held, ListConfig) and not (words[i].isdigit() and int(words[i]) < len(held)):
                raise RecipeError(
                    f"{path}{_at(places, path)}: {'.'.join(words[:i])} is a list of {len(held)}; its places are "
                    f"{', '.join(map(str, range(len(held)))) or 'none'}, not '{words[i]}'"
                )


def _inner_paths(value: Any, path: str) -> list[str]:
    """A path and the paths of all that stands in the value."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in _inner_paths(item, join(path, key)))]


def check_keys(values: Any, places: Mapping[str, str], path: str = "") -> None:
    """Raise `RecipeError` for a key that could not be addressed by a dotted path."""
    if isinstance(values, list):
        for index, item in enumerate(values):
            check_keys(item, places, join(path, index))
    elif isinstance(values, Mapping):
        for key, item in values.items():
            inner = join(path, key)
            if not (isinstance(key, str) and _KEY.fullmatch(key)):
                raise RecipeError(
                    f"{inner}{_at(places, path or key)}: '{key}' is no key of a recipe: keys are single words; "
                    "a path such as a.b is written nested, a: {b: …}, or given as an override"
                )
            check_keys(item, places, inner)


def place_of(places: Mapping[str, str], path: str) -> str | None:
    """Where a path, or the nearest thing that it stands in, was written; else what stands in it."""
    outer = path
    while outer and outer not in places:
        outer = outer.rpartition(".")[0]
    inner = (place for other, place in places.items() if other.startswith(f"{path}."))
    return places.get(outer) or next(inner, None)


def _at(places: Mapping[str, str] | str, path: str) -> str:
    place = _place(places, path)
    return f" ({place})" if place else ""


def _place(places: Mapping[str, str] | str, path: str) -> str:
    return places if isinstance(places, str) else (place_of(places, path) or "")


def _bounded(values: Any, places: Mapping[str, str]) -> None:
    """Refuse interpolations other than `${path}`, and such as write out to more than a recipe can hold."""
    sizes: dict[str, int] = {}

    def at(path: str) -> Any:
        held = values
        for word in path.split("."):
            held = held.get(word) if isinstance(held, dict) else None
        return held

    def size(value: Any, path: str, chain: tuple[str, ...]) -> int:
        if isinstance(value, dict):
            return 1 + sum(size(v, join(path, k), chain) for k, v in value.items())
        if isinstance(value, list):
            return 1 + sum(size(v, join(path, i), chain) for i, v in enumerate(value))
        if not (isinstance(value, str) and "${" in value):
            return 1
        targets = _INTERPOLATION.findall(value)
        if len(targets) != value.count("${"):
            raise RecipeError(
                f"{path}{_at(places, path)}: '{value}' is no interpolation that a recipe may hold; only "
                "${path.to.a.value} is: a recipe is complete, and reads no environment and runs nothing"
            )
        return 1 + sum(follow(target, path, chain) for target in targets)

    def follow(target: str, path: str, chain: tuple[str, ...]) -> int:
        if target in chain:
            raise RecipeError(
                f"{path}{_at(places, path)}: interpolations go in a circle: {' -> '.join([*chain, target])}"
            )
        if target not in sizes:
            sizes[target] = size(at(target), target, (*chain, target))
        if sizes[target] > MAX_VALUES:
            raise RecipeError(f"{path}{_at(places, path)}: ${{{target}}} writes out to more than {MAX_VALUES} values")
        return sizes[target]

    size(values, "", ())


def locate(source: str | Path, folder: Path) -> tuple[Path, str]:
    """The file that a source names, and how messages name it: `bakeoff:models/x.yaml` is one that is shipped."""
    text = str(source)
    if text.startswith("bakeoff:"):
        name = text.removeprefix("bakeoff:")
        known = sorted(path.relative_to(shipped()).as_posix() for path in shipped().rglob("*.yaml"))
        if name not in known:
            raise RecipeError(f"{text}: no such recipe is shipped; there are: {', '.join(known)}")
        return (shipped() / name).resolve(), text
    path = (folder / source).expanduser()
    try:
        shown = str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        shown = str(path)
    return path.resolve(), shown


def shipped() -> Path:
    """The folder of the recipes that come with the package (a source checkout: beside `framework`)."""
    import bakeoff

    package = Path(bakeoff.__file__).parent
    return package / "recipes" if (package / "recipes").is_dir() else package.parents[1] / "recipes"


def stack(path: Path, shown: str, chain: tuple[str, ...] = ()) -> list[Layer]:
    """The layers of a file, those it extends first; keys in the short form, `imports` by absolute path.

    Raises `RecipeError` for a missing parent, and for a circle with its whole chain.
    """
    if shown in chain:
        raise RecipeError(f"extends goes in a circle: {' -> '.join([*chain[chain.index(shown) :], shown])}")
    return expand(read(path, shown), path.parent, (*chain, shown))


def expand(layer: Layer, folder: Path, chain: tuple[str, ...] = ()) -> list[Layer]:
    """The layers that a read layer extends, then itself."""
    parents = layer.values.pop("extends", None) or []
    parents = [parents] if isinstance(parents, str) else parents
    if not (isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)):
        raise RecipeError(f"extends{_at(layer.places, 'extends')}: is a file or a list of files, not {parents!r}")
    layers: list[Layer] = []
    for parent in parents:
        path, shown = locate(parent, folder)
        if not path.is_file():
            raise RecipeError(f"extends{_at(layer.places, 'extends')}: there is no file {shown}")
        layers += stack(path, shown, chain)
    values = absolute_scripts(shorten(layer.values, "", layer.places), folder)
    return [*layers, Layer(values, shorten_places(layer.places))]


def absolute_scripts(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same values with the scripts of `imports`, which are relative to `folder`, by absolute path."""
    scripts = values.get("imports")
    return values | {"imports": [_absolute(s, folder) for s in scripts]} if isinstance(scripts, list) else values


def _absolute(script: Any, folder: Path) -> Any:
    if isinstance(script, str):
        return str((folder / script).resolve())
    if isinstance(script, Mapping) and isinstance(script.get("path"), str):
        return {**script, "path": str((folder / script["path"]).resolve())}
    return script


def overrides(changes: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Override paths and values, short form; those that name a class come first, so that order does not matter."""
    if isinstance(changes, str):
        changes = [changes]
    pairs = changes.items() if isinstance(changes, Mapping) else [_pair(change) for change in changes]
    found = {}
    for path, value in pairs:
        short = short_path(path)
        named = short.rpartition(".")[2] == "use" and isinstance(value, str)
        found[short] = short_name(value) if named else shorten(value, path)
    return dict(
        sorted(found.items(), key=lambda item: (not _names_class(*item), item[0].removesuffix(".use").count(".")))
    )


def _names_class(path: str, value: Any) -> bool:
    return path.rpartition(".")[2] == "use" or (isinstance(value, Mapping) and "use" in value)


def _pair(change: str) -> tuple[str, Any]:
    path, equals, text = change.partition("=")
    if not equals or not path.strip() or not all(path.strip().split(".")):
        raise RecipeError(f"override '{change}': is written path=value, as in model.depth=12")
    return path.strip(), parse_value(text, f"override '{change}'")
