"""YAML text -> plain values and the line of each; strict, safe and bounded."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bakeoff.errors import RecipeError

#: A recipe is written by hand: what is larger than this is some other file.
MAX_BYTES = 1 << 20
MAX_VALUES = 10_000
MAX_DEPTH = 64
MAX_KEYS = 1_000
MAX_KEY = 200
#: What whole numbers stay below: tensors, files and databases hold no larger ones.
MAX_WHOLE = 2**63


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: `3e-4` is a number, `yes`, `1:30` and dates are text; nothing else is guessed."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)|[-+]?[0-9][0-9_]*\.[0-9_]*"
        r"|[-+]?\.[0-9][0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}
for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first)
_ALLOWED = {f"tag:yaml.org,2002:{name}" for name in (*_SCALARS, "str", "seq", "map")}


@dataclass
class Layer:
    """The values of one file and where each stands: dotted path -> "file:line"."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


def join(path: str, key: object) -> str:
    """The dotted path of `key` inside `path`."""
    return f"{path}.{key}" if path else str(key)


def brief(value: object, limit: int = 60) -> str:
    """A value as text that a message can hold."""
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def fault(value: Any) -> str | None:
    """Why no recipe holds a plain value, whatever its place; None if one may."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number"
    if type(value) is int and not -MAX_WHOLE <= value < MAX_WHOLE:
        return "a whole number takes 64 bits at most"
    if isinstance(value, str) and "\0" in value:
        return "text holds no character NUL"
    return None


def read(path: Path, shown: str | None = None) -> Layer:
    """The mapping that a YAML file holds, with the line of each value; `shown` names the file in places.

    Raises `RecipeError` with file and line if it cannot be read, is not YAML, repeats a key, carries a tag or a merge
    key, holds a number that is not finite or takes more than 64 bits, or is larger or deeper than a recipe can be.
    """
    shown = shown or str(path)
    layer = Layer()
    node = _compose(_text(path, shown), shown)
    if not isinstance(node, yaml.MappingNode):
        held = "nothing" if node is None else "a list" if isinstance(node, yaml.SequenceNode) else "one value"
        raise RecipeError(f"{shown}: holds {held}; a recipe is a mapping of sections (model:, data:, trainer:, …)")
    layer.values = _Reader(shown, layer.places).value(node, "")
    return layer


def parse_value(text: str, shown: str) -> Any:
    """The value of an override `path=text`, by the same rules as in a file."""
    node = _compose(text, shown)
    return None if node is None else _Reader(shown, {}).value(node, "")


class _Dumper(yaml.SafeDumper):
    """Quotes text that the reader would take for another value, whichever rules another reader has."""


_Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, []), *_Loader.yaml_implicit_resolvers.get(first, [])]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
}


def as_yaml(values: Mapping[str, Any]) -> str:
    """A mapping as YAML that `read` gives back, in its own order."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _text(path: Path, shown: str) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise RecipeError(f"{shown}: there is no such file") from None
    except IsADirectoryError:
        raise RecipeError(f"{shown}: is a directory; name the YAML file inside it") from None
    except OSError as error:
        raise RecipeError(f"{shown}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise RecipeError(f"{shown}: is larger than {MAX_BYTES} bytes, so it is no recipe")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{shown}: is not UTF-8 text (byte {error.start}), so it is no recipe") from None


def _compose(text: str, shown: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise RecipeError(f"{shown}{line}: is not YAML: {problem}") from None
    except RecursionError:
        raise RecipeError(f"{shown}: holds values nested deeper than {MAX_DEPTH}, so it is no recipe") from None
    except ValueError as error:
        raise RecipeError(f"{shown}: is not YAML that a recipe could hold: {error}") from None


class _Reader:
    """Nodes -> values. Aliases are written out, so what they may grow to is bounded here."""

    def __init__(self, shown: str, places: dict[str, str]):
        self.shown, self.places = shown, places
        self.count = 0
        self.open: set[int] = set()

    def value(self, node: yaml.Node, path: str) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            raise self._error(node, f"holds more than {MAX_VALUES} values, aliases written out")
        if len(self.open) > MAX_DEPTH:
            raise self._error(node, f"holds values nested deeper than {MAX_DEPTH}, so it is no recipe")
        if node.tag not in _ALLOWED:
            raise self._error(node, f"the tag {brief(node.tag)} is not allowed; a recipe holds plain values")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self.open:
            raise self._error(node, "an alias stands inside what it stands for")
        self.open.add(id(node))
        held = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)
        self.open.discard(id(node))
        return held

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        loader = _Loader("")
        try:
            value = loader.construct_object(node)
        except (ValueError, yaml.YAMLError) as error:
            raise self._error(node, f"'{brief(node.value)}' is no value: {error}") from None
        wrong = fault(value)
        if wrong is not None:
            raise self._error(node, f"'{brief(node.value)}' is no value of a recipe: {wrong}")
        return value

    def _list(self, node: yaml.Node, path: str) -> list[Any]:
        held = []
        for index, item in enumerate(node.value):
            self._place(join(path, index), item)
            held.append(self.value(item, join(path, index)))
        return held

    def _mapping(self, node: yaml.Node, path: str) -> dict[str, Any]:
        held: dict[str, Any] = {}
        if len(node.value) > MAX_KEYS:
            raise self._error(node, f"a mapping of {len(node.value)} keys; a recipe's have at most {MAX_KEYS}")
        for key_node, item in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key_node.tag != "tag:yaml.org,2002:str":
                raise self._error(
                    key_node, f"the key {brief(key or '(not one word)')} is no text; quote it if it is meant as a name"
                )
            if len(key) > MAX_KEY:
                raise self._error(key_node, f"the key '{brief(key)}' is longer than {MAX_KEY}, so it is no name")
            if key == "<<":
                raise self._error(
                    key_node, "merge keys (<<) are not used in recipes; use extends, or an interpolation ${…}"
                )
            if key in held:
                raise self._error(
                    key_node, f"the key '{key}' stands twice in one mapping (first at line {self._line(path, key)})"
                )
            self._place(join(path, key), key_node)
            held[key] = self.value(item, join(path, key))
        return held

    def _place(self, path: str, node: yaml.Node) -> None:
        self.places[path] = f"{self.shown}:{node.start_mark.line + 1}"

    def _line(self, path: str, key: str) -> str:
        return self.places[join(path, key)].rpartition(":")[2]

    def _error(self, node: yaml.Node, message: str) -> RecipeError:
        return RecipeError(f"{self.shown}:{node.start_mark.line + 1}: {message}")
