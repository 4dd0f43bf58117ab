"""What stands in an index's folder, by size: whether it is whole is told before it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bakeoff.errors import UserError
from bakeoff.parts.files import read_sealed, write_sealed

#: The file that is written first, without sizes, and last, with those of all others.
FILE = "search.json"


def begun(folder: Path, facts: dict[str, Any], files: tuple[str, ...]) -> bool:
    """Whether the folder holds a whole index with these facts; its `files` are removed if it was begun with others."""
    kept = read_sealed(folder / FILE) if (folder / FILE).exists() else {}
    sizes = kept.pop("bytes", None)
    if kept == facts:
        return sizes is not None and _fault(folder, sizes) is None
    for name in files:
        (folder / name).unlink(missing_ok=True)
    write_sealed(folder / FILE, facts)
    return False


def finish(folder: Path, facts: dict[str, Any], files: tuple[str, ...]) -> None:
    """Say that the index is whole."""
    write_sealed(folder / FILE, {**facts, "bytes": {name: (folder / name).stat().st_size for name in files}})


def opened(folder: Path, count: int, described: dict[str, str]) -> dict[str, Any]:
    """The facts of a whole index of `count` chunks.

    `UserError` naming a file that is cut short, with both sizes; both counts where it is another database's; or what of
    `described`, the fingerprints that it was built with, is another.
    """
    facts = read_sealed(folder / FILE)
    if "bytes" not in facts:
        raise UserError(f"{folder} holds an index that was begun and not finished: build it again")
    if fault := _fault(folder, facts["bytes"]):
        raise UserError(fault)
    if facts["count"] != count:
        raise UserError(f"{folder} is an index of {facts['count']} chunks; the database has {count}")
    differing = [name for name, value in described.items() if facts.get(name) != value]
    if differing:
        raise UserError(f"{folder} was built by another {' and another '.join(differing)}: build it again")
    return facts


def _fault(folder: Path, sizes: dict[str, int]) -> str | None:
    """What is wrong with the first file that has not its size."""
    for name, size in sizes.items():
        there = (folder / name).stat().st_size if (folder / name).exists() else 0
        if there != size:
            return f"{folder / name} is damaged: it has {there} bytes, and had {size} when it was written"
    return None
