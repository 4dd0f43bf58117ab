"""Constructors are the schema: what a class takes, with types and defaults."""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import sys
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

from bakeoff.recipe.foreign import followed

#: Stands for "no default".
REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """One argument of a constructor."""

    name: str
    annotation: Any = Any
    default: Any = REQUIRED

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Signature:
    """The arguments of a class by name, in order.

    `open` says that a `**kwargs` takes others that no base class names; `further` are those of them that are known by
    name only, from what the class does with its `**kwargs`.
    """

    parameters: dict[str, Parameter]
    open: bool = False
    further: tuple[str, ...] = ()


@cache
def signature_of(cls: type, positional: int = 0) -> Signature:
    """What `cls` takes beyond its first `positional` arguments; a `**kwargs` is followed up the base classes."""
    found: dict[str, Parameter] = {}
    takes_more = False
    open_ended = True
    for owner in cls.__mro__[:-1]:
        if "__init__" not in owner.__dict__:
            continue
        own, open_ended = _own(owner.__dict__["__init__"], positional)
        found |= {name: parameter for name, parameter in own.items() if name not in found}
        takes_more = takes_more or open_ended
        if not open_ended:
            break
    listed = inspect.signature(cls).parameters if takes_more else {}
    further = tuple(name for name in followed(cls) if name not in (*found, *listed)) if takes_more else ()
    return Signature(found, takes_more and (open_ended or bool(further)), further)


def _own(init: Any, positional: int) -> tuple[dict[str, Parameter], bool]:
    hints = type_hints(init)
    listed = list(inspect.signature(init).parameters.values())[1:]
    found: dict[str, Parameter] = {}
    for parameter in listed:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if positional and parameter.kind is not parameter.KEYWORD_ONLY:
            positional -= 1
            continue
        annotation = hints.get(parameter.name, Any)
        found[parameter.name] = Parameter(parameter.name, annotation, parameter.default)
    return found, any(parameter.kind is parameter.VAR_KEYWORD for parameter in listed)


def type_hints(init: Any) -> dict[str, Any]:
    """Annotations as types; one that cannot be evaluated alone counts as `Any`."""
    try:
        return typing.get_type_hints(init)
    except Exception:
        return {name: _evaluated(text, init) for name, text in getattr(init, "__annotations__", {}).items()}


def _evaluated(text: Any, init: Any) -> Any:
    if not isinstance(text, str):
        return text
    interfaces = sys.modules.get("bakeoff.interfaces")
    module = sys.modules.get(getattr(init, "__module__", ""))
    names = {**vars(typing), **vars(collections.abc), **vars(interfaces or builtins), **vars(module or builtins)}
    try:
        return eval(text, names)
    except Exception:
        return Any
