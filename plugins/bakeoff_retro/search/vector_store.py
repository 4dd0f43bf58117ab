"""The vectors of a database's texts, in a file that is written batch by batch and read by memory map."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bakeoff.errors import UserError
from bakeoff.interfaces import Embedder, Texts
from bakeoff.parts.files import writing

#: Texts that are embedded, and whose vectors are forced to disk, at once.
BATCH = 512


def write_vectors(path: Path, texts: Texts, embedder: Embedder, progress: Callable[[int], None]) -> None:
    """(n, `embedder.width`) float32 of all texts in order.

    What a call that was killed has left is kept: its whole batches, which must be of the same texts and embedder.
    """
    row, total = 4 * embedder.width, len(texts)
    with writing(path, row * total), open(path, "ab") as file:
        there = min(os.path.getsize(path) // row, total)
        done = there if there == total else there // BATCH * BATCH
        file.truncate(done * row)
        if done:
            progress(done)
        for start in range(done, total, BATCH):
            batch = texts[start : start + BATCH]
            file.write(embedder.embed(batch).astype("<f4", copy=False).tobytes())
            file.flush()
            os.fsync(file.fileno())
            progress(len(batch))


def open_vectors(path: Path, count: int, width: int) -> np.ndarray:
    """The (`count`, `width`) vectors, not read yet; `UserError` naming the file and both sizes where it is not so long.

    The map may be written to, as torch wants it, and keeps that to itself.
    """
    size, there = 4 * count * width, path.stat().st_size if path.exists() else 0
    if size != there:
        raise UserError(f"{path} is damaged: it has {there} bytes, and {count} vectors of {width} numbers take {size}")
    return np.memmap(path, "<f4", "c", shape=(count, width))
