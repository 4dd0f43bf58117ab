"""Files that corpora read: found by a path or pattern, hashed in pieces."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable
from pathlib import Path

from bakeoff.errors import UserError
from bakeoff.parts.files import expanded

PIECE = 2**20


def find_files(path: str, corpus: str, suffixes: tuple[str, ...]) -> list[Path]:
    """A file, the files of a glob, or those of a folder, at any depth, that end in one of the suffixes; sorted."""
    place = expanded(path)
    if place.is_file():
        return [place]
    if place.is_dir():
        found = [file for suffix in suffixes for file in place.rglob(f"*{suffix}")]
        endings = " or ".join(f"*{suffix}" for suffix in suffixes)
        lack = f"no {endings} file in it; name files that end otherwise by a pattern such as '{place}/**/*.rst'"
    else:
        found = [Path(name) for name in glob.glob(str(place), recursive=True)]
        lack = f"no file there (looked for from {Path.cwd()})"
    files = sorted({file for file in found if file.is_file()})
    if not files:
        raise UserError(f"corpus '{corpus}': path is '{path}', and there is {lack}")
    return files


def hash_of(about: str, files: Iterable[Path]) -> str:
    """A hash of `about` and of the files' contents, in order; their names do not matter."""
    digest = hashlib.sha256(about.encode())
    for path in files:
        digest.update(f"\n{path.stat().st_size}\n".encode())
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    return digest.hexdigest()


def total_size(files: Iterable[Path]) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in files)
