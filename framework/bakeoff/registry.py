"""Components by name: entry points of installed packages, and `@register` for scripts and notebooks.

Listing names imports nothing; finding one imports only the package that owns it.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import distributions
from typing import Any, TypeVar

from bakeoff.errors import RegistryError

#: Number of the plugin interface. A change that breaks plugins raises it.
API = 1

#: Kind -> the abstract class that its components implement.
KINDS: dict[str, str] = {
    "tokenizer": "bakeoff.interfaces.tokenizer:Tokenizer",
    "template": "bakeoff.interfaces.template:Template",
    "corpus": "bakeoff.interfaces.corpus:Corpus",
    "backbone": "bakeoff.interfaces.backbone:Backbone",
    "block": "bakeoff.interfaces.block:Block",
    "mixer": "bakeoff.interfaces.mixer:SequenceMixer",
    "attention_op": "bakeoff.interfaces.attention_op:AttentionOp",
    "position": "bakeoff.interfaces.position:PositionalEncoding",
    "feed_forward": "bakeoff.interfaces.feed_forward:FeedForward",
    "router": "bakeoff.interfaces.router:Router",
    "balance": "bakeoff.interfaces.balance:Balance",
    "norm": "bakeoff.interfaces.norm:Norm",
    "head": "bakeoff.interfaces.head:Head",
    "objective": "bakeoff.interfaces.objective:Objective",
    "reward": "bakeoff.interfaces.reward:Reward",
    "schedule": "bakeoff.interfaces.schedule:Schedule",
    "sampler": "bakeoff.interfaces.sampler:Sampler",
    "embedder": "bakeoff.interfaces.embedder:Embedder",
    "retriever": "bakeoff.interfaces.retriever:Retriever",
    "converter": "bakeoff.interfaces.converter:Converter",
    "strategy": "bakeoff.interfaces.strategy:Strategy",
    "task": "bakeoff.interfaces.task:Task",
    "executor": "bakeoff.interfaces.executor:Executor",
    "page": "bakeoff.interfaces.page:Page",
    "command": "bakeoff.interfaces.command:Command",
}

#: Names that live in packages which may not be installed -> the pip line that adds them.
KNOWN_ELSEWHERE: dict[str, str] = {}

C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Entry:
    """One registered component: what it is called, what it is, where its class stands, who ships it."""

    name: str
    kind: str
    target: str
    package: str
    version: str

    def load(self) -> type:
        """Import the class; a package that fails to import is named in the error."""
        module_name, _, attribute = self.target.partition(":")
        try:
            module = importlib.import_module(module_name)
            loaded = getattr(module, attribute)
        except Exception as error:
            raise RegistryError(
                f"{self.kind} '{self.name}' of package {self.package} {self.version} cannot be imported "
                f"from {self.target}: {type(error).__name__}: {error}"
            ) from error
        wanted = getattr(importlib.import_module(module_name.partition(".")[0]), "BAKEOFF_API", API)
        if wanted != API:
            raise RegistryError(
                f"package {self.package} {self.version} is written for plugin interface {wanted}, "
                f"this bakeoff has {API}; install a release of {self.package} that supports interface {API}"
            )
        return loaded


_registered: dict[str, tuple[Entry, type]] = {}


@lru_cache(maxsize=1)
def _installed() -> tuple[Entry, ...]:
    found: dict[tuple[str, str, str], Entry] = {}
    for distribution in distributions():
        for point in distribution.entry_points:
            if point.group.startswith("bakeoff."):
                kind = point.group.removeprefix("bakeoff.")
                package = distribution.metadata["Name"]
                entry = Entry(point.name, kind, point.value, package, distribution.version)
                found.setdefault((kind, point.name, package), entry)
    return tuple(sorted(found.values(), key=lambda entry: (entry.kind, entry.name, entry.package)))


def refresh() -> None:
    """Forget what was installed, so that the next look-up reads it anew."""
    _installed.cache_clear()


def register(name: str) -> Callable[[C], C]:
    """Register a class of a script or notebook under `name`, for this process.

    Raises `RegistryError` if the name is not snake_case or is owned by another class.
    """

    def wrap(cls: C) -> C:
        if not (name.isidentifier() and name == name.lower()):
            raise RegistryError(f"'{name}' is not a snake_case name")
        kind = getattr(cls, "kind", None)
        if kind not in KINDS:
            raise RegistryError(
                f"{cls.__name__} implements none of the interfaces; its kind would be one of {', '.join(KINDS)}"
            )
        entry = Entry(name, kind, f"{cls.__module__}:{cls.__qualname__}", f"script {cls.__module__}", "")
        owners = [e for e in _installed() if e.name == name]
        if owners:
            raise RegistryError(_clash(name, [*owners, entry]))
        held = _registered.get(name)
        if held and held[0].target != entry.target:
            raise RegistryError(_clash(name, [held[0], entry]))
        _registered[name] = (entry, cls)
        return cls

    return wrap


def names(kind: str | None = None) -> list[Entry]:
    """All registered components, or those of one kind, sorted by kind and name; imports none of them."""
    entries = [*_installed(), *(entry for entry, _ in _registered.values())]
    return sorted((e for e in entries if kind is None or e.kind == kind), key=lambda e: (e.kind, e.name))


def entry(name: str, kind: str | None = None) -> Entry:
    """The entry that owns `name`; an unknown or doubly owned name, or one of another kind, is an error."""
    owners = [e for e in names() if e.name == name]
    if len(owners) > 1:
        raise RegistryError(_clash(name, owners))
    if not owners:
        raise RegistryError(_unknown(name, kind))
    if kind is not None and owners[0].kind != kind:
        raise RegistryError(f"'{name}' is a {owners[0].kind}, not a {kind}; {_choices(name, kind)}")
    return owners[0]


def find(name: str, kind: str | None = None) -> type:
    """The class registered under `name`; imports only the package that owns it.

    Raises `RegistryError` if the name is unknown, has two owners, is of another kind, or cannot be imported.
    """
    owner = entry(name, kind)
    if name in _registered:
        return _registered[name][1]
    loaded = owner.load()
    interface = interface_of(owner.kind)
    if not (isinstance(loaded, type) and issubclass(loaded, interface)):
        raise RegistryError(
            f"'{name}' of package {owner.package} is registered as a {owner.kind}, "
            f"but {owner.target} is no subclass of {interface.__name__}"
        )
    return loaded


def interface_of(kind: str) -> type:
    """The abstract class of a kind."""
    if kind not in KINDS:
        raise RegistryError(f"'{kind}' is no kind of component; kinds: {', '.join(KINDS)}")
    module, _, attribute = KINDS[kind].partition(":")
    return getattr(importlib.import_module(module), attribute)


def name_of(cls: Any) -> str | None:
    """The name under which a class is registered, or None."""
    target = f"{cls.__module__}:{cls.__qualname__}"
    for name, (_, held) in _registered.items():
        if held is cls:
            return name
    for candidate in _installed():
        if candidate.target == target:
            return candidate.name
    for candidate in _installed():  # a package may export its class from another module than it stands in
        if candidate.target.partition(":")[2] == cls.__qualname__ and cls.__module__.startswith(
            candidate.target.partition(":")[0]
        ):
            return candidate.name
    return None


def _clash(name: str, owners: list[Entry]) -> str:
    where = " and ".join(f"{e.package} {e.version} ({e.target})".replace("  ", " ") for e in owners)
    return f"the name '{name}' has more than one owner: {where}; uninstall or rename one"


def _choices(name: str, kind: str | None) -> str:
    known = sorted({e.name for e in names(kind)})
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return f"{hint}known {kind or 'component'} names: {', '.join(known) or 'none'}"


def _unknown(name: str, kind: str | None) -> str:
    if name in KNOWN_ELSEWHERE:
        return f"'{name}' is not installed; it comes with: {KNOWN_ELSEWHERE[name]}"
    return f"no {kind or 'component'} is called '{name}'; {_choices(name, kind)}"
