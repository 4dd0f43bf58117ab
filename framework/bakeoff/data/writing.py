"""Documents -> token store: in fixed memory, resumable after a kill, whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bakeoff.data.progress import Bar
from bakeoff.data.store import ENDS, FORMAT, MANIFEST, id_type
from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import SPLITS, Corpus
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.files import sync_folder, write_json
from bakeoff.parts.tokenizers.text import utf8

#: Characters of text that are encoded at once; what is held in memory is a small multiple, or the longest document.
BATCH = 2**20
#: Bytes of text after which what is written is settled: no more than this is done again after a kill.
SETTLE = 2**24


@dataclass
class Position:
    """How far a split has come."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0


class Journal:
    """A file of lines, one for each settled position; a line that a kill has torn does not count."""

    def __init__(self, path: Path):
        self._positions: dict[str, Position] = {}
        self._file = open(path, "a+b")  # noqa: SIM115
        self._file.seek(0)
        good = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            split, position = json.loads(line)
            self._positions[split] = Position(**position)
            good += len(line)
        self._file.truncate(good)

    def position(self, split: str) -> Position:
        return self._positions.get(split, Position())

    def settle(self, split: str, position: Position) -> None:
        self._file.write(json.dumps([split, asdict(position)]).encode() + b"\n")
        _sync(self._file)

    def close(self) -> None:
        self._file.close()


class SplitWriter:
    """Appends documents to the files of one split, from where the journal says that it stands."""

    def __init__(self, folder: Path, split: str, tokenizer: Tokenizer, journal: Journal):
        self._split, self._journal, self._tokenizer = split, journal, tokenizer
        self._ids = id_type(tokenizer.vocab_size)
        self._end = np.array([tokenizer.end], dtype=self._ids)
        tokens, ends = folder / f"{split}.tokens", folder / f"{split}.ends"
        self.position = journal.position(split)
        if _size(tokens) < self._bytes_of_tokens or _size(ends) < self._bytes_of_ends:
            self.position = Position()  # the disk has lost what the journal says was settled
        self._tokens = opened(tokens, self._bytes_of_tokens)
        self._ends = opened(ends, self._bytes_of_ends)
        self._unsettled = 0

    @property
    def _bytes_of_tokens(self) -> int:
        return self.position.tokens * self._ids.itemsize

    @property
    def _bytes_of_ends(self) -> int:
        return self.position.documents * ENDS.itemsize

    def append(self, texts: list[str], threads: int) -> int:
        """Write some documents; returns their bytes of text."""
        encoded = self._tokenizer.encode_arrays(texts, threads)
        pieces = [piece for ids in encoded for piece in (ids, self._end)]
        tokens = np.concatenate(pieces, dtype=self._ids, casting="unsafe")
        if np.count_nonzero(tokens >= self._tokenizer.text_size) != len(texts):
            raise ValueError(f"{type(self._tokenizer).__name__} gave a reserved id for text")
        ends = self.position.tokens + np.cumsum([len(ids) + 1 for ids in encoded], dtype=ENDS)
        text_bytes = sum(len(text) if text.isascii() else len(utf8(text)) for text in texts)
        self._tokens.write(tokens.data)
        self._ends.write(ends.data)
        self.position.documents += len(texts)
        self.position.tokens += len(tokens)
        self.position.text_bytes += text_bytes
        self._unsettled += text_bytes
        if self._unsettled >= SETTLE:
            self.settle()
        return text_bytes

    def settle(self) -> None:
        """Make all that was appended last, whatever happens next."""
        _sync(self._tokens)
        _sync(self._ends)
        self._journal.settle(self._split, self.position)
        self._unsettled = 0

    def close(self) -> None:
        self._tokens.close()
        self._ends.close()


def write_store(corpus: Corpus, tokenizer: Tokenizer, folder: Path, about: dict[str, Any], *, bar: Bar) -> None:
    """Tokenise both splits of a corpus into the store `folder`, which bears its name only once it is whole.

    Work stands in `folder` + ".partial" meanwhile; a call after a kill goes on there, and ends in the same bytes.
    `about` is added to the manifest.
    """
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    journal = Journal(partial / "journal")
    try:
        positions = {split: _write_split(corpus, tokenizer, partial, split, journal, bar) for split in SPLITS}
    finally:
        journal.close()
    ids = id_type(tokenizer.vocab_size).str
    splits = {split: asdict(position) for split, position in positions.items()}
    write_json(partial / MANIFEST, {"format": FORMAT, "ids": ids, "end": tokenizer.end, "splits": splits, **about})
    (partial / "journal").unlink()
    sync_folder(partial)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    sync_folder(folder.parent)


def _write_split(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, split: str, journal: Journal, bar: Bar
) -> Position:
    writer = SplitWriter(folder, split, tokenizer, journal)
    try:
        bar.advance(writer.position.text_bytes)
        for texts in batches(islice(documents(corpus, split), writer.position.documents, None), BATCH):
            bar.advance(writer.append(texts, threads()))
        writer.settle()
        return writer.position
    finally:
        writer.close()


def documents(corpus: Corpus, split: str) -> Iterator[str]:
    """The documents of a split; a source that cannot be read is the user's to mend."""
    try:
        yield from corpus.documents(split)
    except OSError as error:
        raise UserError(f"reading the {split} split of the corpus failed: {type(error).__name__}: {error}") from error


def batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Texts in runs of about `size` characters, at least one each."""
    run: list[str] = []
    held = 0
    for text in texts:
        run.append(text)
        held += len(text) + 1
        if held >= size:
            yield run
            run, held = [], 0
    if run:
        yield run


def threads() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def opened(path: Path, size: int) -> BinaryIO:
    """The file, cut to `size` bytes, open for appending."""
    file = open(path, "ab")  # noqa: SIM115
    file.truncate(size)
    return file


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
