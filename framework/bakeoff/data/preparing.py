"""The prepared tokenizer and token store of a corpus: made once, kept in the cache, found by fingerprint."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bakeoff.data.locking import locked
from bakeoff.data.progress import Bar
from bakeoff.data.store import FORMAT, id_type, is_whole
from bakeoff.data.writing import documents, write_store
from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.files import expanded, sync_folder
from bakeoff.parts.tokenizers.text import utf8


def cache_folder(cache: str | None) -> Path:
    """The folder that is given, else that of the environment variable BAKEOFF_CACHE, else ~/.cache/bakeoff."""
    chosen = cache or os.environ.get("BAKEOFF_CACHE") or Path.home() / ".cache" / "bakeoff"
    return expanded(chosen).absolute()


class Preparation:
    """What is made of one corpus in one cache folder."""

    def __init__(self, corpus: Corpus, cache: Path, *, progress: bool):
        self.corpus, self.cache, self.progress = corpus, cache, progress
        self.texts = corpus.fingerprint()

    def tokenizer(self, untrained: Tokenizer, limit: int) -> tuple[Tokenizer, str]:
        """The trained tokenizer, and a hash of what it has learnt.

        It learns from whole documents of the train split, in order, until it has seen `limit` bytes.
        """
        with tempfile.TemporaryDirectory() as saved:
            untrained.save(Path(saved))
            arguments = hash_folder(Path(saved))
        key = key_of("tokenizer", FORMAT, self.texts, _class(untrained), arguments, limit)
        folder = self.cache / "tokenizers" / key
        if not folder.is_dir():
            with (
                writing_cache(folder, lambda: self._room(folder, 0)),
                locked(folder.with_suffix(".lock"), f"tokenizer {key}"),
            ):
                if not folder.is_dir():
                    self._train(untrained, folder, limit)
        return type(untrained).load(folder), hash_folder(folder)

    def store(self, tokenizer: Tokenizer, learnt: str) -> Path:
        """The folder of the token store under a trained tokenizer; its name is a hash of all that it hangs on."""
        key = key_of("tokens", FORMAT, self.texts, _class(tokenizer), learnt)
        folder = self.cache / "tokens" / key
        if is_whole(folder):
            return folder
        with (
            writing_cache(folder, lambda: self._room(folder, tokenizer.vocab_size)),
            locked(folder.with_suffix(".lock"), f"tokens {key}"),
        ):
            if not is_whole(folder):
                about = {"corpus": self.texts, "tokenizer": _class(tokenizer), "licence": self.corpus.licence}
                with Bar("tokenising", self.corpus.size(), show=self.progress) as bar:
                    write_store(self.corpus, tokenizer, folder, about, bar=bar)
        return folder

    def _train(self, tokenizer: Tokenizer, folder: Path, limit: int) -> None:
        size = self.corpus.size()
        with Bar("training the tokenizer", None if size is None else min(size, limit), show=self.progress) as bar:
            tokenizer.train(self._sample(limit, bar))
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        tokenizer.save(partial)
        sync_folder(partial)
        os.replace(partial, folder)
        sync_folder(folder.parent)

    def _sample(self, limit: int, bar: Bar) -> Iterator[str]:
        seen = 0
        for text in documents(self.corpus, "train"):
            yield text
            length = len(utf8(text))
            bar.advance(length)
            seen += length
            if seen >= limit:
                return

    def _room(self, folder: Path, vocab_size: int) -> str:
        partial = folder.with_name(folder.name + ".partial")
        written = sum(path.stat().st_size for path in partial.glob("*")) if partial.is_dir() else 0
        size = self.corpus.size()
        if size is None or not vocab_size:
            return f"{written:,} bytes were written, which the next run goes on from"
        most = size * id_type(vocab_size).itemsize
        return f"it takes up to {most:,} bytes, of which {written:,} were written, which the next run goes on from"


@contextmanager
def writing_cache(folder: Path, room: Callable[[], str] | None = None) -> Iterator[None]:
    """A write to the cache that fails is the user's to mend: says where, why, and how much `room` it takes."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        told = "" if room is None else f"{room()}; "
        raise UserError(
            f"cannot write {folder}: {error.strerror or error}; {told}make room, or choose another folder with "
            "data.cache or the environment variable BAKEOFF_CACHE"
        ) from error


def hash_folder(folder: Path) -> str:
    """A hash of the files in a folder, names and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _class(tokenizer: Tokenizer) -> str:
    return f"{type(tokenizer).__module__}:{type(tokenizer).__qualname__}"


def key_of(*parts: object) -> str:
    """What a folder of the cache is called that hangs on these."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
