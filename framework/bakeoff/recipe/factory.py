"""A class with its arguments, called once for each thing that is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Factory:
    """Calls `func` with the arguments that a recipe gave, factories of inner parts among them.

    Every call gets containers of its own, so that two layers never share one by accident.
    """

    __slots__ = ("func", "keywords")

    def __init__(self, func: type, keywords: dict[str, Any]):
        self.func, self.keywords = func, keywords

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The object; `arguments` are what its builder gives, such as the `LayerContext`."""
        return self.func(*arguments, **{key: _own(value) for key, value in self.keywords.items()}, **named)

    def __repr__(self) -> str:
        return f"{self.func.__name__}({', '.join(f'{key}={value!r}' for key, value in self.keywords.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factory) and (self.func, self.keywords) == (other.func, other.keywords)

    __hash__ = None  # type: ignore[assignment]


def instance(cls: type, keywords: dict[str, Any]) -> Any:
    """The object itself."""
    return cls(**keywords)


def make(value: Any, path: str, makers: Mapping[str, Callable[[Any], Any]]) -> Any:
    """The object that a checked value stands for: `makers` are applied from the inside out, each at its path."""
    if isinstance(value, dict):
        value = {key: make(item, f"{path}.{key}", makers) for key, item in value.items()}
        if path in makers:
            extra = value.pop("dict_kwargs", {})
            value = {key: item for key, item in value.items() if key != "use"} | extra
    elif isinstance(value, list):
        value = [make(item, f"{path}.{index}", makers) for index, item in enumerate(value)]
    return makers[path](value) if path in makers else value


def _own(value: Any) -> Any:
    if isinstance(value, list):
        return [_own(item) for item in value]
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    return value
