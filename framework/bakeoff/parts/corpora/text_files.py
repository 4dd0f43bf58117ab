"""Corpus `text_files`: one file, a glob, or a folder of text."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from bakeoff.errors import UserError
from bakeoff.interfaces import Corpus
from bakeoff.parts.corpora.splitting import HashSplit, cut, document_hash, known_share, known_split, split_by_hash


class TextFiles(Corpus):
    """One document a file, in the order of their paths.

    About the share `validation` of the files is held out, chosen by a hash of their content and `seed`, at least one;
    equal files stand on one side. Where there is but one file (or several that are all equal), validation is its end:
    the last `validation` of its characters, cut at a line end.

    Parameters
    ----------
    path : a file; a pattern with *, ? or ** ; or a folder, of which all *.txt and *.md files are taken, at any depth.
    validation : share of the files, or of the one file's characters; 0: none.
    encoding : of the files. A file that is something else is an error that names the place.
    """

    def __init__(self, *, path: str, validation: float = 0.1, seed: int = 0, encoding: str = "utf-8"):
        self.path, self.validation, self.seed, self.encoding = path, known_share(validation), seed, encoding
        self.files = _files(path)
        if not self.size():
            raise UserError(f"corpus 'text_files': {len(self.files)} files at {path}, and all are empty")

    def documents(self, split: str) -> Iterator[str]:
        known_split(split)
        dealt = self._split
        if dealt is None:
            yield from filter(None, [cut(self._read(self.files[0]), self.validation, split)])
            return
        for path in self.files:
            text = self._read(path)
            if dealt.has(split, text):
                yield text

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"text_files {self.validation} {self.seed} {self.encoding}".encode())
        for path in self.files:
            content = path.read_bytes()
            digest.update(f"\n{len(content)}\n".encode() + content)
        return digest.hexdigest()

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    @property
    def licence(self) -> str:
        return "unknown: the user's own files"

    @cached_property
    def _split(self) -> HashSplit | None:
        hashes = (document_hash(self._read(path), self.seed) for path in self.files)
        return split_by_hash(hashes, self.validation, self.seed)

    def _read(self, path: Path) -> str:
        try:
            return path.read_bytes().decode(self.encoding)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: byte {error.start} is not {self.encoding} ({error.reason}); set the corpus's encoding to what "
                "the file is, or leave the file out"
            ) from error
        except LookupError as error:
            raise UserError(f"corpus 'text_files': {error}") from error


def _files(path: str) -> list[Path]:
    place = Path(path).expanduser()
    if place.is_dir():
        found = [file for suffix in ("txt", "md") for file in place.rglob(f"*.{suffix}")]
        what = "*.txt or *.md files in it; name others by a pattern such as " + str(place / "**" / "*.rst")
    else:
        found = [Path(name) for name in glob.glob(str(place), recursive=True)] if not place.is_file() else [place]
        what = f"file there, looked for from {Path.cwd()}"
    files = sorted(file for file in set(found) if file.is_file())
    if not files:
        raise UserError(f"corpus 'text_files': path is '{path}', and there is no {what}")
    return files
