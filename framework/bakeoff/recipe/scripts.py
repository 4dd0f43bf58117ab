"""`imports:`, parts that live in a script: run once, by content; hashed, so that a saved recipe says what it ran."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bakeoff.errors import RecipeError, UserError
from bakeoff.recipe.reading import brief

#: Content hash -> the module that ran it; the same content runs once a process, wherever it stands.
_ran: dict[str, str] = {}


def script_hash(path: Path) -> str:
    """SHA-256 of a script's bytes; `RecipeError` if it cannot be read."""
    try:
        if path.exists() and not path.is_file():
            raise RecipeError(f"imports: {path} is no file")
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RecipeError(f"imports: {path} cannot be read: {error.strerror}") from None


def listed(tree: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """The scripts of a recipe, `(path, expected hash or None)`, without running any."""
    items = tree.get("imports") or []
    items = [items] if isinstance(items, (str, Mapping)) else items
    if not isinstance(items, list):
        raise RecipeError(f"imports: is a list of scripts, not {brief(items)}")
    found = []
    for item in items:
        entry = {"path": item} if isinstance(item, str) else item
        if not (
            isinstance(entry, Mapping)
            and isinstance(entry.get("path"), str)
            and isinstance(entry.get("sha256", ""), str)
            and not set(entry) - {"path", "sha256"}
        ):
            raise RecipeError(f"imports: {brief(item)} is neither the path of a script nor {{path: …, sha256: …}}")
        found.append((entry["path"], entry.get("sha256")))
    return found


def import_scripts(
    tree: Mapping[str, Any], base: Path | None = None, expected_hashes: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Run the scripts of a recipe, so that their parts are registered; returns path -> hash.

    Paths are relative to `base`. A script that differs from the hash that was recorded is an error, and is not run.
    """
    hashes = {}
    for name, expected in listed(tree):
        path = (base or Path.cwd()) / name
        found = script_hash(path)
        wanted = (expected_hashes or {}).get(name, expected)
        if wanted is not None and wanted != found:
            raise RecipeError(
                f"imports: {path} has changed: its hash is {found[:12]}, the recipe was saved with {wanted[:12]}"
            )
        _run(path, found)
        hashes[name] = found
    return hashes


def _run(path: Path, content: str) -> None:
    if content in _ran:
        return
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"bakeoff_script_{path.stem}_{place}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"imports: {path} is no Python script")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        if isinstance(error, UserError):
            raise
        raise RecipeError(f"imports: {path}{_line(error, path)} failed: {type(error).__name__}: {error}") from error
    _ran[content] = name


def _line(error: BaseException, path: Path) -> str:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f":{line}" if line else ""
