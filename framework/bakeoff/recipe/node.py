"""A node names a class and its arguments: `{use: NAME, …}`, or long, `{class_path: …, init_args: {…}}`."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from bakeoff.errors import RecipeError
from bakeoff.recipe.reading import brief, fault, join
from bakeoff.registry import names

#: Keys of a node in the long form; `dict_kwargs` holds what a foreign class takes by its `**kwargs`.
LONG = ("class_path", "init_args", "dict_kwargs")


def short_name(class_path: str) -> str:
    """The registered name of a class path, or the path itself."""
    return _targets().get(class_path, class_path) if "." in class_path else class_path


def class_path(name: str) -> str:
    """The class path of an installed component; the name itself for one that a script registered, and for a path."""
    return {short: path for path, short in _targets().items()}.get(name, name)


def _targets() -> dict[str, str]:
    return {e.target.replace(":", "."): e.name for e in names() if not e.package.startswith("script ")}


def shorten(value: Any, path: str = "", places: Mapping[str, str] | None = None) -> Any:
    """The same value with every node in the short form; `places`, where given, are those of `value`.

    Raises `RecipeError` for a node that has keys of both forms, and for a value that no recipe may hold.
    """
    if isinstance(value, (list, tuple)):
        return [shorten(item, join(path, i), places) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return _plain(value, path)
    if "class_path" not in value and "init_args" not in value:
        named = {k: shorten(v, join(path, k), places) for k, v in value.items()}
        return named | {"use": short_name(named["use"])} if isinstance(named.get("use"), str) else named
    where = f" ({(places or {})[path]})" if path in (places or {}) else ""
    others = [key for key in value if key not in LONG]
    if others:
        raise RecipeError(
            f"{path}{where}: '{others[0]}' stands beside class_path and init_args; put it into init_args, "
            "or write the node in the short form, {use: NAME, argument: value}"
        )
    arguments = value.get("init_args") or {}
    if not isinstance(arguments, Mapping) or "use" in arguments:
        raise RecipeError(
            f"{path}{where}: init_args is a mapping of arguments beside class_path, not {brief(arguments)}"
        )
    named = {"use": short_name(value["class_path"])} if isinstance(value.get("class_path"), str) else {}
    extra = {"dict_kwargs": value["dict_kwargs"]} if value.get("dict_kwargs") else {}
    return named | {k: shorten(v, join(join(path, "init_args"), k), places) for k, v in arguments.items()} | extra


def _plain(value: Any, path: str) -> Any:
    """Numbers of numpy, paths and tuples, which come from a notebook, as YAML would give them."""
    if isinstance(value, Real) and not isinstance(value, bool):
        value = int(value) if isinstance(value, Integral) else float(value)
    elif isinstance(value, PurePath):
        value = str(value)
    wrong = fault(value)
    if wrong is not None:
        raise RecipeError(f"{path}: {wrong}")
    return value


def short_path(path: str) -> str:
    """An override path by the short form: without `init_args`, and with `use` for `class_path`."""
    words = [word for word in path.split(".") if word != "init_args"]
    return ".".join("use" if word == "class_path" else word for word in words)


def shorten_places(places: Mapping[str, str]) -> dict[str, str]:
    """Places by the short paths."""
    return {short_path(path): place for path, place in places.items()}
