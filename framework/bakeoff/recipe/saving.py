"""Saved recipes: the long form with every default, explicit nulls and versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bakeoff.recipe.checker import Checker
from bakeoff.recipe.node import class_path
from bakeoff.recipe.reading import join
from bakeoff.recipe.scripts import listed, script_hash
from bakeoff.registry import name_of, names


def saved(tree: Mapping[str, Any], checker: Checker) -> dict[str, Any]:
    """The long form of a checked and filled tree, with `versions`; loading it gives the same classes and arguments."""
    long = {key: lengthen(value, key, checker.classes) for key, value in tree.items()}
    long["imports"] = [{"path": path, "sha256": script_hash(Path(path))} for path, _ in listed(tree)]
    return {**long, "versions": versions(checker)}


def lengthen(value: Any, path: str, classes: Mapping[str, type]) -> Any:
    """The value with every node as `class_path` and `init_args`."""
    if isinstance(value, list):
        return [lengthen(item, join(path, i), classes) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    inner = {key: lengthen(item, join(path, key), classes) for key, item in value.items()}
    if path not in classes:
        return inner
    registered = name_of(classes[path])
    arguments = {key: item for key, item in inner.items() if key not in ("use", "dict_kwargs")}
    long = {"class_path": class_path(registered) if registered else inner["use"]}
    extra = {"dict_kwargs": inner["dict_kwargs"]} if "dict_kwargs" in inner else {}
    return long | {"init_args": arguments} | extra


def versions(checker: Checker) -> dict[str, str]:
    """Versions of Python, of the core's dependencies and of every package that ships a part in use."""
    packages = {"bakeoff", "torch", "lightning"}
    owners = {entry.name: entry.package for entry in names() if not entry.package.startswith("script ")}
    packages |= {owners[name] for cls in checker.classes.values() if (name := name_of(cls)) in owners}
    found = {"python": platform.python_version()}
    for package in sorted(packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def paths(value: Any, path: str = "") -> list[str]:
    """The dotted paths of all values that are no mappings, and of empty mappings."""
    if isinstance(value, Mapping) and value:
        return [inner for key, item in value.items() for inner in paths(item, join(path, key))]
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        return [inner for i, item in enumerate(value) for inner in paths(item, join(path, i))]
    return [path]
