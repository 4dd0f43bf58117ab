"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees all of it or none of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """`write_whole` of a plain nest of dicts, lists, strings and numbers; equal content gives equal bytes."""
    write_whole(path, json.dumps(content, ensure_ascii=True, sort_keys=True, indent=0).encode())


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    return json.loads(path.read_bytes())


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
