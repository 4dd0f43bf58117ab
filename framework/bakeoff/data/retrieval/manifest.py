"""What a database's folder says of itself: `manifest.json`, compared with what a recipe asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError
from bakeoff.parts.files import read_sealed

#: Inside of a database's folder: what it is, and what its retriever writes.
MANIFEST, INDEX = "manifest.json", "index"
#: What a recipe decides; what follows from that is compared only where all of this is equal.
DECIDED = ("format", "chunk", "share", "corpus", "tokenizer", "retriever")


def check(folder: Path, about: Mapping[str, Any]) -> None:
    """Raise `UserError` where no whole index of that description stands in a folder, naming all that differs."""
    make = f"bakeoff index RECIPE --folder {folder}"
    if not (folder / MANIFEST).is_file():
        there = f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder"
        raise UserError(f"data.retrieval.index: {folder} is no index: {there}; make it with: {make}")
    held = read_sealed(folder / MANIFEST)
    differing = list(_differing(held, about))
    if differing:
        other = folder.with_name(f"{folder.name}-2")
        raise UserError(
            f"data.retrieval.index: {folder} is the index of another database: {'; '.join(differing)}. Make the right "
            f"one with: bakeoff index RECIPE --folder {other}"
        )
    damaged = damage(folder / INDEX, held["files"])
    if damaged:
        raise UserError(f"data.retrieval.index: {folder} is damaged: {damaged}; remove it, and make it with: {make}")


def holds(folder: Path, about: Mapping[str, Any]) -> bool:
    """Whether a whole index of that description stands in a folder."""
    try:
        held = read_sealed(folder / MANIFEST)
    except UserError:
        return False
    return not list(_differing(held, about)) and damage(folder / INDEX, held["files"]) is None


def damage(folder: Path, sizes: Mapping[str, int]) -> str | None:
    """The first file that is not as long as it was written, with both lengths."""
    there = file_sizes(folder)
    for name, size in sizes.items():
        if name not in there:
            return f"{name} is not there"
        if there[name] != size:
            return f"{name} was written with {size} bytes and has {there[name]}"
    return None


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of all files in a folder, by their names in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _differing(held: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[str]:
    """What differs, with both values."""
    found = list(_compared({key: held.get(key) for key in DECIDED}, {key: about[key] for key in DECIDED}))
    if not found:
        rest = [key for key in about if key not in DECIDED]
        found = list(_compared({key: held.get(key) for key in rest}, {key: about[key] for key in rest}))
    yield from found


def _compared(held: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[str]:
    for key in [*about, *(key for key in held if key not in about)]:
        there, here = held.get(key), about.get(key)
        if there == here:
            continue
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            yield from _compared(there, here)
        else:
            yield f"{key} is {there} there and {here} in this recipe"
