"""The prepared tokenizer and token store of a corpus: made once, kept in the cache, found by fingerprint."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bakeoff.data.locking import locked
from bakeoff.data.progress import Bar
from bakeoff.data.store import FORMAT, is_whole
from bakeoff.data.writing import write_store
from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.files import sync_folder


def cache_folder(cache: str | None) -> Path:
    """The folder that is given, else that of the environment variable BAKEOFF_CACHE, else ~/.cache/bakeoff."""
    chosen = cache or os.environ.get("BAKEOFF_CACHE") or Path.home() / ".cache" / "bakeoff"
    return Path(chosen).expanduser().absolute()


def prepared_tokenizer(corpus: Corpus, tokenizer: Tokenizer, cache: Path, limit: int, *, progress: bool) -> Tokenizer:
    """The tokenizer, trained on whole documents of the train split, in order, until `limit` bytes are seen."""
    key = _hash("tokenizer", FORMAT, corpus.fingerprint(), _class(tokenizer), content_hash(tokenizer), limit)
    folder = cache / "tokenizers" / key
    if not folder.is_dir():
        with _writing(folder, corpus, 0), locked(folder.with_suffix(".lock"), f"tokenizer {key}"):
            if not folder.is_dir():
                _train(corpus, tokenizer, folder, limit, progress)
    return type(tokenizer).load(folder)


def prepared_store(corpus: Corpus, tokenizer: Tokenizer, cache: Path, *, progress: bool) -> Path:
    """The folder of the token store of a corpus under a trained tokenizer; its name is the fingerprint."""
    key = store_key(corpus, tokenizer)
    folder = cache / "tokens" / key
    if not is_whole(folder):
        with _writing(folder, corpus, tokenizer.vocab_size), locked(folder.with_suffix(".lock"), f"tokens {key}"):
            if not is_whole(folder):
                about = {"corpus": corpus.fingerprint(), "tokenizer": _class(tokenizer), "licence": corpus.licence}
                with Bar("tokenising", corpus.size(), show=progress) as bar:
                    write_store(corpus, tokenizer, folder, about, bar=bar)
    return folder


def store_key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """A hash of all that decides what a store holds: the texts, the trained tokenizer, the format."""
    return _hash("tokens", FORMAT, corpus.fingerprint(), _class(tokenizer), content_hash(tokenizer))


def content_hash(tokenizer: Tokenizer) -> str:
    """A hash of all that a tokenizer saves: its arguments and what it has learnt."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _train(corpus: Corpus, tokenizer: Tokenizer, folder: Path, limit: int, progress: bool) -> None:
    size = corpus.size()
    with Bar("reading for the tokenizer", None if size is None else min(size, limit), show=progress) as bar:
        tokenizer.train(_sample(corpus, limit, bar))
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    tokenizer.save(partial)
    sync_folder(partial)
    os.replace(partial, folder)
    sync_folder(folder.parent)


def _sample(corpus: Corpus, limit: int, bar: Bar) -> Iterator[str]:
    seen = 0
    for text in corpus.documents("train"):
        yield text
        length = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        bar.advance(length)
        seen += length
        if seen >= limit:
            return


@contextmanager
def _writing(folder: Path, corpus: Corpus, vocab_size: int) -> Iterator[None]:
    """A write that fails is the user's to mend: says where, why, and how much room it takes."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(folder.parent)):
            raise
        raise UserError(
            f"cannot write {folder}: {error.strerror or error}; {_room(folder, corpus, vocab_size)}; make room, or "
            "choose another folder with data.cache or the environment variable BAKEOFF_CACHE"
        ) from error


def _room(folder: Path, corpus: Corpus, vocab_size: int) -> str:
    partial = folder.with_name(folder.name + ".partial")
    written = sum(path.stat().st_size for path in partial.glob("*")) if partial.is_dir() else 0
    size = corpus.size()
    if size is None or not vocab_size:
        return f"{written:,} bytes were written"
    width = (vocab_size - 1).bit_length() // 8 + 1
    return f"it takes up to {size * width:,} bytes, {written:,} were written"


def _class(tokenizer: Tokenizer) -> str:
    return f"{type(tokenizer).__module__}:{type(tokenizer).__qualname__}"


def _hash(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
