"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bakeoff.errors import UserError

#: Key under which a sealed file holds its checksum.
SEAL = "sha256"
#: Bytes that are read at once.
PIECE = 2**20
#: Ends of the names of what is not whole, and of what steps aside for another.
PARTIAL, ASIDE = ".tmp", ".old"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees all of it or none; `UserError` if the disk takes no more."""
    with replacing(path, path.with_name(f"{path.name}.{os.getpid()}.tmp"), len(content)) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, partial: Path, size: int | None = None) -> Iterator[BinaryIO]:
    """`partial`, open to be written; then forced to disk and put in the place of `path`, or removed if that fails."""
    try:
        with writing(path, size):
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(path: Path, size: int | None = None) -> Iterator[None]:
    """What the system refuses inside becomes a `UserError` that names the file, and the bytes that it takes."""
    try:
        yield
    except OSError as error:
        takes = f"it takes {size:,} bytes, " if size is not None else ""
        raise UserError(f"cannot write {path}: {error.strerror or error}; {takes}{free(path)}") from error


def free(path: Path) -> str:
    """How many bytes are free where a path stands, in words."""
    there = next((folder for folder in path.absolute().parents if folder.is_dir()), Path("/"))
    return f"{shutil.disk_usage(there).free:,} bytes are free in {there}"


def write_json(path: Path, content: Any) -> None:
    """`write_whole` of a plain nest of dicts, lists, strings and numbers; equal content gives equal bytes."""
    write_whole(path, json.dumps(content, ensure_ascii=True, sort_keys=True, indent=0).encode())


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    return json.loads(path.read_bytes())


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """`write_json` of a mapping together with its own checksum."""
    write_json(path, {**content, SEAL: seal(content)})


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` was given; `UserError` naming the file if it is not there or not what was written."""
    content = read_mapping(path)
    if content.pop(SEAL, None) != seal(content):
        raise UserError(f"{path} is damaged: its checksum is wrong")
    return content


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a JSON file holds; `UserError` naming the file and the fault if there is none."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path.parent} is damaged: {path.name} is not there") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no mapping")
    return content


def seal(content: Any) -> str:
    """SHA-256 of a plain nest; equal nests have equal ones."""
    return hashlib.sha256(json.dumps(content, ensure_ascii=True, sort_keys=True).encode()).hexdigest()


def file_hash(path: Path, most: int | None = None) -> str:
    """SHA-256 of a file's bytes, or of the first `most`; `UserError` if it cannot be read, or is shorter."""
    digest, left = hashlib.sha256(), most
    try:
        with open(path, "rb") as file:
            while piece := file.read(PIECE if left is None else min(left, PIECE)):
                digest.update(piece)
                left = None if left is None else left - len(piece)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if left:
        raise UserError(f"{path} is damaged: it is cut short by {left} bytes")
    return digest.hexdigest()


def checksum(path: Path) -> int:
    """CRC-32 of a file's bytes."""
    value = 0
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            value = zlib.crc32(piece, value)
    return value


def remove(path: Path) -> None:
    """Delete a file or a folder, which loses its name first: nobody sees half of it under that."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir():
            gone = path.with_name(f"{path.name.removesuffix(PARTIAL)}{PARTIAL}")
            if gone != path:
                shutil.rmtree(gone, ignore_errors=True)
                os.replace(path, gone)
            shutil.rmtree(gone, ignore_errors=True)
        else:
            path.unlink()


@contextlib.contextmanager
def stepping_aside(path: Path) -> Iterator[None]:
    """What stands at `path` is out of the way inside, and deleted after, or put back if that fails.

    A crash in between leaves it under another name, from which `settle` puts it back.
    """
    aside = path.with_name(f"{path.name}{ASIDE}")
    if path.exists():
        remove(aside)
        os.replace(path, aside)
    try:
        yield
    except BaseException:
        if aside.exists() and not path.exists():
            os.replace(aside, path)
        raise
    remove(aside)


def settle(folder: Path) -> None:
    """Delete what a crash has left half written in a folder; put back what had stepped aside for it."""
    for partial in folder.glob(f"*{PARTIAL}"):
        remove(partial)
    for aside in folder.glob(f"*{ASIDE}"):
        path = aside.with_name(aside.name.removesuffix(ASIDE))
        if path.exists():
            remove(aside)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.replace(aside, path)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expanded(path: Path | str) -> Path:
    """`path` with a leading `~` replaced by a home directory; `UserError` where nobody has that name."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: {error}") from error
