"""The neighbours of all chunks of a split: found once, kept in the cache, memory-mapped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.data.locking import locked
from bakeoff.data.progress import Bar
from bakeoff.data.retrieval.database import kept_for_next_call
from bakeoff.data.retrieval.grid import grid, ragged
from bakeoff.data.retrieval.lookup import Lookup
from bakeoff.data.retrieval.manifest import damage, file_sizes
from bakeoff.data.store import TokenStore, mapped
from bakeoff.data.writing import opened
from bakeoff.parts.files import read_json, seal, sync_folder, write_json

FORMAT = 2
MANIFEST = "manifest.json"
#: Name -> type of the files: chunks of all rows up to and with each; numbers and scores of each chunk's neighbours.
ENDS, NUMBERS, SCORES = "ends", "numbers", "scores"
TYPES: dict[str, np.dtype] = {ENDS: np.dtype("<i8"), NUMBERS: np.dtype("<i8"), SCORES: np.dtype("<f4")}
#: Chunks that are searched at once, about.
AT_ONCE = 512


class Ahead:
    """Neighbours of the chunks of all rows of a split.

    Attributes
    ----------
    ends : (rows,) int64, how many chunks the rows up to each hold, itself included.
    numbers, scores : (chunks, k), as `Found`.
    """

    def __init__(self, folder: Path, k: int):
        held = read_json(folder / MANIFEST)
        self.ends = mapped(folder / ENDS, TYPES[ENDS], held["rows"])
        flat = [mapped(folder / name, TYPES[name], held["chunks"] * k) for name in (NUMBERS, SCORES)]
        self.numbers, self.scores = (part.reshape(-1, k) for part in flat)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """(n, k) numbers of the neighbours of all chunks of some rows; a row of -1 has none."""
        last = np.maximum(rows, 0)
        begins = np.where(last > 0, self.ends[last - 1], 0)
        owners, within = ragged(np.where(rows >= 0, self.ends[last] - begins, 0))
        return self.numbers[begins[owners] + within]


def neighbours_of(
    lookup: Lookup, store: TokenStore, *, length: int, isolate: bool, cache: Path, progress: bool
) -> Ahead:
    """Those of the rows that start every `length` tokens of a split: found now, or in the cache."""
    split, k = store.split, lookup.k
    about = {"format": FORMAT, "database": lookup.database.key, "tokens": store.folder.name, "split": split}
    about |= {"length": length, "isolate": isolate, "k": k}
    folder = cache / "neighbours" / f"{split}-{seal(about)[:16]}"
    if not _whole(folder):
        advice = "make room, or choose another folder with data.cache or the environment variable BAKEOFF_CACHE"
        lock = folder.with_name(folder.name + ".lock")
        with kept_for_next_call(folder, advice), locked(lock, f"the neighbours of the {split} split"):
            if not _whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
                _search(lookup, store, folder, length, isolate, progress)
    return Ahead(folder, k)


def _search(lookup: Lookup, store: TokenStore, folder: Path, length: int, isolate: bool, progress: bool) -> None:
    """Search block by block of rows; what stands in `folder` + ".partial" is gone on from."""
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    rows = -(-len(store.tokens) // length)
    at_once = max(1, AT_ONCE * lookup.chunk // length)
    writer = _Writer(partial, lookup.k)
    try:
        with Bar(f"neighbours of {store.split}", rows, show=progress, unit="rows") as bar:
            bar.advance(writer.rows)
            while writer.rows < rows:
                block = np.arange(writer.rows, min(writer.rows + at_once, rows))
                chunks = grid(store, block * length, length, lookup.chunk, isolate=isolate)
                found = lookup.found(store, chunks)
                writer.append(np.bincount(chunks.rows, minlength=len(block)), found.numbers, found.scores)
                bar.advance(len(block))
    finally:
        writer.close()
    write_json(partial / MANIFEST, {"rows": rows, "chunks": writer.chunks, "files": writer.sizes})
    writer.settled.unlink(missing_ok=True)
    sync_folder(partial)
    os.replace(partial, folder)
    sync_folder(folder.parent)


class _Writer:
    """Appends blocks to the files, from where the last settled one ended."""

    def __init__(self, folder: Path, k: int):
        self.settled, self._k = folder / "settled.json", k
        held: dict[str, Any] = read_json(self.settled) if self.settled.exists() else {"rows": 0, "chunks": 0}
        self.rows, self.chunks = held["rows"], held["chunks"]
        there = file_sizes(folder)
        if any(there.get(name, 0) < size for name, size in self.sizes.items()):
            self.rows = self.chunks = 0  # the disk has lost what was settled
        self._files = {name: opened(folder / name, size) for name, size in self.sizes.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        each = self.chunks * self._k
        counts = {ENDS: self.rows, NUMBERS: each, SCORES: each}
        return {name: count * TYPES[name].itemsize for name, count in counts.items()}

    def append(self, counts: np.ndarray, numbers: np.ndarray, scores: np.ndarray) -> None:
        """Chunks of each row of a block, and what was found for them; it lasts from then on."""
        content = {ENDS: self.chunks + np.cumsum(counts), NUMBERS: numbers, SCORES: scores}
        for name, values in content.items():
            self._files[name].write(values.astype(TYPES[name]).tobytes())
            self._files[name].flush()
            os.fsync(self._files[name].fileno())
        self.rows, self.chunks = self.rows + len(counts), self.chunks + len(numbers)
        write_json(self.settled, {"rows": self.rows, "chunks": self.chunks})

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _whole(folder: Path) -> bool:
    """Whether all files stand there as they were written."""
    return (folder / MANIFEST).is_file() and damage(folder, read_json(folder / MANIFEST)["files"]) is None
