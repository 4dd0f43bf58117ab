"""What jsonargparse does: types that are neither plain nor parts (paths, durations, enums), and what `**kwargs` are."""

from __future__ import annotations

from typing import Any


def typed(value: Any, annotation: Any) -> tuple[bool, Any]:
    """Whether jsonargparse accepts the value for the type, and the value as it stands in a recipe."""
    parsed = _parse(value, annotation)
    return parsed is not _REFUSED, value


def converted(annotation: Any, value: Any) -> Any:
    """The typed value that a checked one stands for, such as a `timedelta` for `00:12:00:00`."""
    parsed = _parse(value, annotation)
    return value if parsed is _REFUSED else parsed


def followed(cls: type) -> list[str]:
    """Names that the constructor takes, those of its `**kwargs` among them as far as its source says where they go."""
    from jsonargparse import ArgumentParser

    try:
        listed = ArgumentParser(exit_on_error=False).add_class_arguments(cls, "cls", fail_untyped=False)
    except (TypeError, ValueError, AttributeError):
        return []
    return [name.removeprefix("cls.") for name in listed]


_REFUSED = object()


def _parse(value: Any, annotation: Any) -> Any:
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    try:
        parser.add_argument("--value", type=annotation)
        parsed = parser.parse_object({"value": value})
        return parser.instantiate(parsed).value
    except (ArgumentError, TypeError, ValueError):
        return _REFUSED
