"""`Database`: the chunks of a corpus under a retriever, with an index that is made once and opened when searched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bakeoff.data.locking import locked
from bakeoff.data.progress import Bar
from bakeoff.data.retrieval.chunks import ChunkTable, ChunkTexts
from bakeoff.data.retrieval.manifest import INDEX, MANIFEST, check, file_sizes, holds
from bakeoff.data.retrieval.section import Retrieval
from bakeoff.data.store import TokenStore
from bakeoff.errors import UserError
from bakeoff.interfaces.retriever import Index
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.files import expanded, free, read_json, seal, sync_folder, write_json, write_sealed

FORMAT = 1
#: What a folder is made of, while it is made.
BEGUN = "begun.json"


class Database:
    """What chunks may be looked up in.

    Parameters
    ----------
    store : the tokens of its documents. corpus, learnt : hashes of the texts and of the tokenizer they are from.
    cache : folder of the cache, where its index stands unless the recipe names one.

    Raises `UserError` where it holds no chunk, or fewer than are asked for.
    """

    def __init__(
        self,
        *,
        retrieval: Retrieval,
        store: TokenStore,
        tokenizer: Tokenizer,
        corpus: str,
        learnt: str,
        cache: Path,
    ):
        self.retrieval, self.store, self.tokenizer = retrieval, store, tokenizer
        self.table = ChunkTable(store, retrieval.chunk, retrieval.share)
        self.texts = ChunkTexts(self.table, tokenizer)
        if not len(self.table):
            raise UserError(
                f"data.retrieval: the database would be empty: its {len(store.ends)} documents hold no text; give "
                "another data.retrieval.corpus"
            )
        if retrieval.k > len(self.table):
            raise UserError(
                f"data.retrieval.k is {retrieval.k}, but the database holds {len(self.table)} chunks; set "
                f"data.retrieval.k to at most {len(self.table)}, or give it more text"
            )
        self.about: dict[str, Any] = {
            "format": FORMAT,
            "chunk": retrieval.chunk,
            "share": retrieval.share,
            "corpus": corpus,
            "tokenizer": learnt,
            "retriever": retrieval.retriever.described(),
            "documents": int((self.table.firsts[1:] > self.table.firsts[:-1]).sum()),
            "chunks": len(self.table),
        }
        self.key = seal([self.about, retrieval.retriever.fingerprint()])[:16]
        self.own = retrieval.index is None
        self.folder = cache / "indexes" / self.key if retrieval.index is None else expanded(retrieval.index)
        self._opened: tuple[int, Index] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def index(self) -> Index:
        """The index, opened once by each process; `prepare` comes first."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self.retrieval.retriever.load(self.folder / INDEX, self.texts)
        return self._opened[1]

    def prepare(self, *, progress: bool) -> Database:
        """Make the index in the cache unless it stands there; one that the recipe names must be this database's."""
        if self.own:
            self.build(self.folder, progress=progress)
        else:
            check(self.folder, self.about)
        return self

    def build(self, folder: Path, *, progress: bool) -> bool:
        """Make the index in a folder, which bears its name only once it is whole; False where it stands there already.

        Work stands in `folder` + ".partial" meanwhile; a call after a kill goes on there. Raises `UserError` where
        something else stands in the folder, and where the disk takes no more.
        """
        if holds(folder, self.about):
            return False
        advice = "make room, or choose another folder"
        with (
            kept_for_next_call(folder, advice),
            locked(folder.with_name(folder.name + ".lock"), f"the index {folder.name}"),
        ):
            if holds(folder, self.about):
                return False
            if self.own and folder == self.folder:  # what stands under a hash in the cache can only be damaged
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UserError(f"{folder} holds something else than this index; give another folder, or remove it")
            self._build(folder, progress)
        return True

    def _build(self, folder: Path, progress: bool) -> None:
        partial = folder.with_name(folder.name + ".partial")
        begun = {**self.about, "fingerprint": self.retrieval.retriever.fingerprint()}
        if not (partial / BEGUN).is_file() or read_json(partial / BEGUN) != begun:
            shutil.rmtree(partial, ignore_errors=True)
            (partial / INDEX).mkdir(parents=True)
            write_json(partial / BEGUN, begun)
        with Bar("indexing", len(self.texts), show=progress, unit="chunks") as bar:
            self.retrieval.retriever.build(self.texts, partial / INDEX, bar.advance)
        sizes = file_sizes(partial / INDEX)
        for name in sizes:
            with open(partial / INDEX / name, "rb") as file:
                os.fsync(file.fileno())
        sync_folder(partial / INDEX)
        write_sealed(partial / MANIFEST, {**self.about, "files": sizes})
        (partial / BEGUN).unlink()
        sync_folder(partial)
        os.replace(partial, folder)
        sync_folder(folder.parent)


@contextmanager
def kept_for_next_call(folder: Path, advice: str) -> Iterator[None]:
    """A write that fails is the user's to mend: says where, why, what is kept of it, and what to do."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        partial = folder.with_name(folder.name + ".partial")
        written = sum(file_sizes(partial).values()) if partial.is_dir() else 0
        raise UserError(
            f"cannot write {folder}: {error.strerror or error}; {written:,} bytes were written, which the next call "
            f"goes on from, and {free(folder)}; {advice}"
        ) from error
