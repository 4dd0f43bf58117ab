"""The token store: the ids of a corpus on disk, memory-mapped.

A store is a folder, complete once it bears its final name:

- `manifest.json`: format, type of the ids, and for each split its documents, tokens and bytes of text;
- `train.tokens`, `validation.tokens`: ids of all documents one after another, one end id after each document;
- `train.ends`, `validation.ends`: for each document, int64, how many tokens stand before its successor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.parts.files import read_json

FORMAT = 1
MANIFEST = "manifest.json"
ENDS = np.dtype("<i8")


def id_type(vocab_size: int) -> np.dtype:
    """The smallest unsigned type that holds ids 0 .. `vocab_size` - 1, little-endian."""
    return np.min_scalar_type(vocab_size - 1).newbyteorder("<")


class TokenStore:
    """One split of a store.

    Attributes
    ----------
    tokens : (n,) unsigned, ids of the whole split.
    ends : (documents,) int64, ascending; document i is `tokens[ends[i - 1] : ends[i]]`, its end id included.
    text_bytes : bytes of UTF-8 that the split's text takes.
    """

    def __init__(self, folder: Path, split: str):
        manifest = read_json(folder / MANIFEST)
        held = manifest["splits"][split]
        self.folder, self.split = folder, split
        self.text_bytes: int = held["text_bytes"]
        self.tokens = mapped(folder / f"{split}.tokens", np.dtype(manifest["ids"]), held["tokens"])
        self.ends = mapped(folder / f"{split}.ends", ENDS, held["documents"])

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore, (self.folder, self.split)

    def document(self, number: int) -> np.ndarray:
        """The ids of one document, without its end id."""
        start = int(self.ends[number - 1]) if number else 0
        return self.tokens[start : int(self.ends[number]) - 1]


def is_whole(folder: Path) -> bool:
    """Whether a store stands there with all its bytes."""
    try:
        manifest = read_json(folder / MANIFEST)
    except FileNotFoundError:
        return False
    width = np.dtype(manifest["ids"]).itemsize
    wanted = {
        folder / f"{split}.{part}": size
        for split, held in manifest["splits"].items()
        for part, size in (("tokens", held["tokens"] * width), ("ends", held["documents"] * ENDS.itemsize))
    }
    return all(path.is_file() and path.stat().st_size == size for path, size in wanted.items())


def mapped(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """A read-only view of the file as a plain array: slicing `np.memmap` itself costs a microsecond more."""
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(count,))) if count else np.zeros(0, dtype)
