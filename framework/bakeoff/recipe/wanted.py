"""What an annotation asks for where it asks for a part: the interface, and whether built or as a factory."""

from __future__ import annotations

import collections.abc
import types
import typing
from dataclasses import dataclass
from typing import Any

#: Classes that are values and not parts, whatever else they may be.
_PLAIN = (bool, int, float, str, bytes, complex, list, tuple, dict, set, frozenset, type(None))


@dataclass(frozen=True)
class Wanted:
    """An instance of `base`, or, where `positional` is given, a factory that is called with so many arguments."""

    base: type
    positional: int | None = None

    @property
    def kind(self) -> str | None:
        """The kind of component, or None for a class that is none of ours."""
        return getattr(self.base, "kind", None)

    def __str__(self) -> str:
        name = self.kind.replace("_", " ") if self.kind else self.base.__name__
        return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}, {{use: NAME, …}}"


def wanted(annotation: Any) -> Wanted | None:
    """The part that an annotation asks for; None for plain values, unions and all else."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is collections.abc.Callable:
        base = typing.get_origin(arguments[1]) or arguments[1]
        if isinstance(base, type) and (hasattr(base, "kind") or _named_by_class(base)):
            return Wanted(base, 0 if arguments[0] is Ellipsis else len(arguments[0]))
        return None
    base = origin if isinstance(origin, type) and hasattr(origin, "kind") else annotation
    if isinstance(base, type) and (hasattr(base, "kind") or _named_by_class(base)):
        return Wanted(base)
    return None


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(inner for member in typing.get_args(annotation) for inner in members(member))
    return (annotation,)


def _named_by_class(base: type) -> bool:
    """Classes of torch and Lightning that recipes name by class path."""
    return not issubclass(base, _PLAIN) and base.__module__.partition(".")[0] in ("torch", "lightning")
