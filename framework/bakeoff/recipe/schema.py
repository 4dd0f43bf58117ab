"""The sections of a recipe: what each may hold, what it holds where nothing is said, and how it is built."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bakeoff.parts.files import expanded
from bakeoff.recipe.checker import Checker
from bakeoff.recipe.plain import shown
from bakeoff.recipe.reading import join
from bakeoff.recipe.signature import Parameter, Signature, signature_of
from bakeoff.recipe.slips import near
from bakeoff.recipe.trainer import DECIDED_ELSEWHERE, trainer_signature
from bakeoff.recipe.wanted import Wanted
from bakeoff.registry import interface_of, name_of, names

#: What stands below every recipe.
DEFAULTS: dict[str, Any] = {
    "imports": [],
    "model": {"use": "decoder"},
    "data": {},
    "objective": {"use": "causal"},
    "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-3, "fused": True},
    "schedule": {"use": "constant"},
    "trainer": {},
    "sampler": {"use": "greedy"},
    "seed": 0,
    "compile": False,
    "validation": {"every_steps": None, "tokens": None},
    "checkpoint": {"every_steps": None, "keep": 2},
    "weights": None,
    "converter": None,
    "trained": None,
    "adapters": None,
}
SEEDS = ("initialisation", "data", "dropout", "sampling")
#: Arguments of the model that no recipe gives: the backbone is the section itself.
LINKED = ("backbone",)
#: Arguments of the model that follow the data where the recipe gives none.
FOLLOWING = ("vocab_size", "max_length")


def load(target: str) -> Any:
    """What stands at `module:name`; imported when it is needed, since those layers stand beside or above this one."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def check_sections(values: Mapping[str, Any], checker: Checker) -> dict[str, Any]:
    """The sections as their classes take them, in order; slips go to the checker."""
    checker.valid[""] = list(SECTIONS)
    checker.value(values.get("versions", {}), dict[str, str], "versions")
    _installed(checker, values.get("versions"))
    for key in values:
        if key not in SECTIONS and key != "versions":
            hint = near(key, SECTIONS)
            checker.slip(key, f"a recipe has no section '{key}'{hint}", None if hint else key)
    return {key: check(checker, values[key], key) for key, check in SECTIONS.items() if key in values}


def _installed(checker: Checker, versions: Any) -> None:
    """Packages that a recipe was saved with and that are not here are a slip: parts of theirs may be missing."""
    for package, release in versions.items() if isinstance(versions, Mapping) else ():
        try:
            if package != "python":
                version(package)
        except PackageNotFoundError:
            checker.slip(
                f"versions.{package}",
                f"the recipe was saved with {package} {release}, which is not installed; "
                f"install it with: pip install '{package}=={release}'",
            )


def model_arguments(backbone: type) -> tuple[Signature, set[str]]:
    """What `model:` takes when this backbone is used, and which of it is the model's own."""
    own = signature_of(load("bakeoff.model:LanguageModel")).parameters
    own = {name: p for name, p in own.items() if name not in LINKED}
    own |= {name: Parameter(name, int | None, None) for name in FOLLOWING}
    inner = signature_of(backbone, 1)
    both = {**own, **{name: p for name, p in inner.parameters.items() if name not in own}}
    return Signature(both, inner.open, inner.further), set(own)


def _model(checker: Checker, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        checker.slip(path, f"takes a mapping (d_model, depth, blocks, …), not {shown(value)}")
        return value
    backbone = checker.class_of(value, Wanted(interface_of("backbone"), 1), path)
    if backbone is None:
        return value
    checker.classes[path] = backbone
    name = name_of(backbone) or str(value["use"])
    given = {key: item for key, item in value.items() if key != "use"}
    checked = checker.arguments(given, model_arguments(backbone)[0], path, f"model ({name})")
    _pattern(checker, given.get("pattern"), given.get("blocks"), join(path, "pattern"))
    return {"use": name, **checked}


def _pattern(checker: Checker, pattern: Any, blocks: Any, path: str) -> None:
    """Every name in a pattern is a block's."""
    if isinstance(pattern, Mapping):
        for key, names in pattern.items():
            if key not in ("first", "repeat"):
                checker.slip(
                    join(path, key),
                    f"a pattern has no part '{key}'; it has first and repeat{near(key, ('first', 'repeat'))}",
                )
            _pattern(checker, names, blocks, join(path, key))
    elif isinstance(pattern, list) and isinstance(blocks, Mapping):
        for index, name in enumerate(pattern):
            if isinstance(name, str) and name not in blocks:
                checker.slip(
                    join(path, index),
                    f"no block is called '{name}'; blocks has {', '.join(blocks)}{near(name, blocks)}",
                )


def _data(checker: Checker, value: Any, path: str) -> Any:
    return _mapping(checker, value, signature_of(load("bakeoff.data:Data")), path)


def _trainer(checker: Checker, value: Any, path: str) -> Any:
    kept = value
    if isinstance(value, Mapping):
        for key in value:
            if key in DECIDED_ELSEWHERE:
                checker.slip(join(path, key), f"'{key}' is not set in a recipe: {DECIDED_ELSEWHERE[key]}")
        kept = {key: item for key, item in value.items() if key not in DECIDED_ELSEWHERE}
        strategy = kept.get("strategy")
        known = [entry.name for entry in names("strategy")]
        if strategy in known:
            kept["strategy"] = strategy = {"use": strategy}
        if isinstance(strategy, Mapping) and "pipeline" in strategy:
            told = "there is no pipeline parallelism: give its ranks to shard (of parameters) or tensor (of each part)"
            checker.slip(join(path, "strategy.pipeline"), told)
            kept["strategy"] = strategy = {key: item for key, item in strategy.items() if key != "pipeline"}
        if isinstance(strategy, Mapping) and "." not in str(strategy.get("use")):
            laid_out = checker.node(strategy, Wanted(interface_of("strategy")), join(path, "strategy"))
            rest = {key: item for key, item in kept.items() if key != "strategy"}
            checked = _mapping(checker, rest, trainer_signature(), path)
            return {**checked, "strategy": laid_out}
    return _mapping(checker, kept, trainer_signature(), path)


def _optimizer(checker: Checker, value: Any, path: str) -> Any:
    return checker.node(value, Wanted(load("torch.optim:Optimizer"), 1), path)


def _component(kind: str) -> Callable[[Checker, Any, str], Any]:
    return lambda checker, value, path: checker.node(value, Wanted(interface_of(kind)), path)


def _optional(kind: str) -> Callable[[Checker, Any, str], Any]:
    return lambda checker, value, path: None if value is None else _component(kind)(checker, value, path)


def _plain(annotation: Any) -> Callable[[Checker, Any, str], Any]:
    return lambda checker, value, path: checker.value(value, annotation, path)


def _counts(**defaults: int | None) -> Callable[[Checker, Any, str], Any]:
    """A section of whole numbers of at least 1, each with its default."""
    signature = Signature({k: Parameter(k, int if v is not None else int | None, v) for k, v in defaults.items()})

    def check(checker: Checker, value: Any, path: str) -> Any:
        checked = _mapping(checker, value, signature, path)
        for key, number in checked.items() if isinstance(checked, dict) else ():
            if isinstance(number, int) and number < 1:
                checker.slip(join(path, key), f"is {number}; it must be at least 1")
        return checked

    return check


def _seed(checker: Checker, value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return _mapping(checker, value, Signature({k: Parameter(k, int | None, None) for k in SEEDS}), path)
    return checker.value(value, int, path)


def _weights(checker: Checker, value: Any, path: str) -> Any:
    """A folder, absolute: a saved recipe stands elsewhere than where it was written."""
    folder = checker.value(value, str | None, path)
    return str(expanded(folder).absolute()) if isinstance(folder, str) else folder


def _trained(checker: Checker, value: Any, path: str) -> Any:
    """Patterns of parameters' names; what they match is known when the model is built."""
    patterns = checker.value(value, list[str] | None, path)
    if patterns == []:
        checker.slip(path, "names no parameter, so nothing would be trained; name some, or write null for all")
    return patterns


def _adapters(checker: Checker, value: Any, path: str) -> Any:
    """Arguments of `bakeoff.parts.adapters.Adapters`, or null for none."""
    if value is None:
        return None
    adapters, before = load("bakeoff.parts.adapters:Adapters"), len(checker.slips)
    checked = _mapping(checker, value, signature_of(adapters), path)
    if len(checker.slips) == before:
        try:
            adapters(**checked)
        except ValueError as error:
            checker.slip(path, str(error))
    return checked


def _imports(checker: Checker, value: Any, path: str) -> Any:
    return checker.value(value, list[str | dict[str, str]], path)


def _mapping(checker: Checker, value: Any, signature: Signature, path: str) -> Any:
    if not isinstance(value, Mapping):
        checker.slip(path, f"takes a mapping ({', '.join(list(signature.parameters)[:4])}, …), not {shown(value)}")
        return value
    return checker.arguments(value, signature, path, path)


SECTIONS: dict[str, Callable[[Checker, Any, str], Any]] = {
    "name": _plain(str),
    "imports": _imports,
    "model": _model,
    "data": _data,
    "objective": _component("objective"),
    "optimizer": _optimizer,
    "schedule": _component("schedule"),
    "trainer": _trainer,
    "sampler": _component("sampler"),
    "seed": _seed,
    "compile": _plain(bool),
    "validation": _counts(every_steps=None, tokens=None),
    "checkpoint": _counts(every_steps=None, keep=2),
    "weights": _weights,
    "converter": _optional("converter"),
    "trained": _trained,
    "adapters": _adapters,
}
