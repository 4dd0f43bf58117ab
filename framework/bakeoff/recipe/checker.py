"""The strict walker: every value of a recipe against the signature of the class that will take it.

It reports all slips at once, with path and near miss, fills defaults in, and turns whole floats into counts. What it
cannot judge (types that are neither plain nor parts) jsonargparse does.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import importlib
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bakeoff.errors import RegistryError
from bakeoff.recipe.factory import Factory, instance
from bakeoff.recipe.foreign import converted
from bakeoff.recipe.node import short_name
from bakeoff.recipe.plain import describe, plain, shown, simple
from bakeoff.recipe.reading import join
from bakeoff.recipe.signature import Parameter, Signature, signature_of
from bakeoff.recipe.slips import Slip, near
from bakeoff.recipe.wanted import Wanted, members, wanted
from bakeoff.registry import find, name_of, names

_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


class Checker:
    """Walks values, gathers slips.

    `fill` writes the defaults of arguments that are not given into what it returns. `valid` maps paths to the keys that
    may stand there, `classes` the paths of nodes to their classes, `makers` paths to what turns the checked value into
    the object that a constructor takes.
    """

    def __init__(self, fill: bool = False):
        self.fill = fill
        self.slips: list[Slip] = []
        self.valid: dict[str, list[str]] = {}
        self.classes: dict[str, type] = {}
        self.makers: dict[str, Callable[[Any], Any]] = {}

    def slip(self, path: str, message: str, key: str | None = None) -> None:
        """Note one thing that is wrong."""
        self.slips.append(Slip(path, message, key))

    def value(self, value: Any, annotation: Any, path: str) -> Any:
        """`value` as `annotation` takes it; a slip if it does not."""
        if value == "???" and isinstance(value, str):
            self.slip(path, f"is left open (???): it takes {describe(annotation)}")
            return value
        options = members(annotation)
        if len(options) > 1:
            return self._union(value, options, annotation, path)
        part = wanted(annotation)
        if part is not None:
            return self.node(value, part, path)
        origin, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
        if origin in _LISTS:
            return self._list(value, origin, arguments, annotation, path)
        if origin in _MAPPINGS:
            return self._mapping(value, arguments, annotation, path)
        if isinstance(origin, type) and dataclasses.is_dataclass(origin):
            return self._record(value, origin, path)
        return self._plain(value, annotation, path)

    def node(self, value: Any, part: Wanted, path: str) -> Any:
        """`{use: NAME, …}` for a part: the class is of the kind that is wanted, the arguments are its own."""
        if isinstance(value, str) and any(entry.name == value for entry in names(part.kind)):
            self.slip(path, f"takes {part}; write {{use: {value}}}")
            return value
        if not isinstance(value, Mapping):
            self.slip(path, f"takes {part}, not {shown(value)}")
            return value
        cls = self.class_of(value, part, path)
        if cls is None:
            return value
        self.classes[path] = cls
        self.makers[path] = partial(instance if part.positional is None else Factory, cls)
        given = {key: item for key, item in value.items() if key != "use"}
        name = name_of(cls) or str(value["use"])
        return {"use": name, **self.arguments(given, signature_of(cls, part.positional or 0), path, name)}

    def arguments(self, given: Mapping[str, Any], signature: Signature, path: str, owner: str) -> dict[str, Any]:
        """Arguments in the signature's order: unknown keys, wrong types and missing ones are slips."""
        known = signature.parameters
        self.valid[path] = list(known)
        extra = {}
        for key, item in given.items():
            if key in signature.further:
                extra[key] = item
            elif key == "dict_kwargs" and signature.open and isinstance(item, Mapping):
                extra[key] = dict(item)
            elif key not in known:
                hint = near(key, [*known, *signature.further])
                more = "; what its **kwargs take goes into dict_kwargs" if signature.open and not hint else ""
                self.slip(join(path, key), f"{owner} has no argument '{key}'{hint}{more}", None if hint else key)
        checked = {}
        for name, parameter in known.items():
            if name in given:
                checked[name] = self.value(given[name], parameter.annotation, join(path, name))
            elif parameter.required:
                self.slip(path, f"{owner} needs '{name}': {describe(parameter.annotation)}")
            elif self.fill:
                checked |= self._default(parameter, join(path, name))
        return checked | extra

    def _plain(self, value: Any, annotation: Any, path: str) -> Any:
        accepted, result = plain(value, annotation)
        if not accepted:
            self.slip(path, f"takes {describe(annotation)}, not {shown(value)}{_near_choice(value, annotation)}")
        elif not simple(annotation):
            self.makers[path] = partial(converted, annotation)
        return result

    def class_of(self, value: Mapping[str, Any], part: Wanted, path: str) -> type | None:
        """The class that a node names, if it is one of those wanted; else a slip."""
        name = value.get("use")
        if not isinstance(name, str):
            known = ", ".join(entry.name for entry in names(part.kind))
            choices = known if part.kind else f"a {part.base.__name__} by class path"
            held = f" (it has {', '.join(value)})" if value else ""
            self.slip(path, f"names no class: `use` is missing{held}; it takes {choices}")
            return None
        try:
            cls = import_class(name) if "." in name else find(name, part.kind)
        except RegistryError as error:
            self.slip(join(path, "use"), str(error))
            return None
        if not issubclass(cls, part.base):
            self.slip(join(path, "use"), f"{name} is no {part.base.__name__}")
            return None
        return cls

    def _union(self, value: Any, options: tuple[Any, ...], annotation: Any, path: str) -> Any:
        if value is None and type(None) in options:
            return None
        same = [o for o in options if isinstance(o, type) and type(value) is o]
        for option in [*same, *options]:
            trial = Checker(self.fill)
            result = trial.value(value, option, path)
            if not trial.slips:
                self._adopt(trial)
                return result
        fitting = [option for option in options if _has_shape(value, option)]
        if len(fitting) == 1:
            return self.value(value, fitting[0], path)
        self.slip(path, f"takes {describe(annotation)}, not {shown(value)}{_near_choice(value, annotation)}")
        return value

    def _adopt(self, trial: Checker) -> None:
        self.valid |= trial.valid
        self.classes |= trial.classes
        self.makers |= trial.makers

    def _list(self, value: Any, origin: Any, arguments: tuple[Any, ...], annotation: Any, path: str) -> Any:
        if not isinstance(value, (list, tuple)):
            self.slip(path, f"takes {describe(annotation)}, not {shown(value)}")
            return value
        fixed = origin is tuple and arguments and arguments[-1] is not Ellipsis
        if fixed and len(value) != len(arguments):
            self.slip(path, f"takes {len(arguments)} values, not {len(value)}")
            return value
        if origin in (tuple, set, frozenset):
            self.makers[path] = origin
        each = arguments if fixed else [arguments[0] if arguments else Any] * len(value)
        return [self.value(item, inner, join(path, i)) for i, (item, inner) in enumerate(zip(value, each, strict=True))]

    def _mapping(self, value: Any, arguments: tuple[Any, ...], annotation: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            self.slip(path, f"takes {describe(annotation)}, not {shown(value)}")
            return value
        inner = arguments[1] if arguments else Any
        return {key: self.value(item, inner, join(path, key)) for key, item in value.items()}

    def _record(self, value: Any, cls: type, path: str) -> Any:
        if not isinstance(value, Mapping):
            self.slip(path, f"takes a mapping of {', '.join(signature_of(cls).parameters)}, not {shown(value)}")
            return value
        self.makers[path] = partial(instance, cls)
        return self.arguments(value, signature_of(cls), path, cls.__name__.lower())

    def _default(self, parameter: Parameter, path: str) -> dict[str, Any]:
        """A default as a recipe would write it; nothing for one that no recipe can express."""
        value = as_node(parameter.default)
        trial = Checker(fill=True)
        result = trial.value(value, parameter.annotation, path)
        if trial.slips or not _writable(result):
            return {}
        self._adopt(trial)
        return {parameter.name: result}


def as_node(value: Any) -> Any:
    """A default value of Python as a recipe writes it: classes and factories become nodes."""
    if isinstance(value, type):
        return {"use": name_of(value) or f"{value.__module__}.{value.__qualname__}"}
    if isinstance(value, (partial, Factory)):
        return as_node(value.func) | {key: as_node(item) for key, item in value.keywords.items()}
    if isinstance(value, (tuple, list)):
        return [as_node(item) for item in value]
    return value


def import_class(class_path: str) -> type:
    """The class at a dotted path; `RegistryError` if there is none."""
    module, _, name = class_path.rpartition(".")
    registered = short_name(class_path)
    if registered != class_path:
        return find(registered)
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever a foreign module does when it is imported
        raise RegistryError(f"{class_path} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type):
        raise RegistryError(f"{class_path} is no class")
    return found


def _writable(value: Any) -> bool:
    """Whether YAML can hold a value."""
    if isinstance(value, dict):
        return all(_writable(item) for item in value.values())
    if isinstance(value, list):
        return all(_writable(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def _has_shape(value: Any, annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    if isinstance(value, Mapping):
        return wanted(annotation) is not None or origin in _MAPPINGS or dataclasses.is_dataclass(origin)
    return isinstance(value, list) and origin in _LISTS


def _near_choice(value: Any, annotation: Any) -> str:
    choices = [choice for member in members(annotation) if typing.get_origin(member) is typing.Literal
               for choice in typing.get_args(member)]  # fmt: skip
    return near(value, choices) if isinstance(value, str) and choices else ""
