"""Plain values against plain types: no text becomes a number, no fraction a count; whole floats are counts."""

from __future__ import annotations

import typing
from typing import Any

from bakeoff.recipe.foreign import typed
from bakeoff.recipe.reading import MAX_WHOLE, brief
from bakeoff.recipe.wanted import members, wanted

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def plain(value: Any, annotation: Any) -> tuple[bool, Any]:
    """Whether a plain type takes the value, and the value as it takes it."""
    if annotation in (Any, object) or isinstance(annotation, typing.TypeVar):
        return True, value
    if annotation is bool or annotation is type(None) or annotation is None:
        return type(value) is bool if annotation is bool else value is None, value
    if annotation is int:
        whole = type(value) is float and value.is_integer() and abs(value) < MAX_WHOLE
        return type(value) is int or whole, int(value) if whole else value
    if annotation is float:
        number = type(value) in (int, float)
        return number, float(value) if number else value
    if annotation is str:
        return isinstance(value, str), value
    if typing.get_origin(annotation) is typing.Literal:
        return any(type(value) is type(choice) and value == choice for choice in typing.get_args(annotation)), value
    return typed(value, annotation)


def simple(annotation: Any) -> bool:
    """Whether a value of this type is passed on as a recipe writes it."""
    if annotation in (*_WORDS, Any, object, None):
        return True
    return typing.get_origin(annotation) is typing.Literal or isinstance(annotation, typing.TypeVar)


def describe(annotation: Any) -> str:
    """What a type takes, in words."""
    options = members(annotation)
    if len(options) > 1:
        return " or ".join(dict.fromkeys(describe(option) for option in options))
    if annotation in _WORDS:
        return _WORDS[annotation]
    part = wanted(annotation)
    if part is not None:
        return str(part)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(_literal(choice) for choice in arguments)
    base = origin or annotation
    if isinstance(base, type) and issubclass(base, (list, tuple)):
        inner = [a for a in arguments if a is not Ellipsis]
        return f"a list of {describe(inner[0])}" if inner else "a list"
    if isinstance(base, type) and issubclass(base, dict):
        return f"a mapping of names to {describe(arguments[1])}" if arguments else "a mapping"
    return getattr(base, "__name__", str(annotation))


def shown(value: Any) -> str:
    """A value as a message shows it, with its type where that is what is wrong."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{brief(value)}' (text)"
    if isinstance(value, dict):
        more = ", …" if len(value) > 6 else ""
        return f"a mapping of {', '.join(map(brief, list(value)[:6]))}{more}" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return str(value)


def _literal(choice: Any) -> str:
    return f"'{choice}'" if isinstance(choice, str) else "null" if choice is None else str(choice).lower()
