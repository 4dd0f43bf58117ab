"""One process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bakeoff.data.progress import say


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` while inside; a second process says that it waits for `what`, and waits.

    The system frees the lock when its holder ends, however it ends.
    """
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is preparing {what}; waiting for it ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked process may hold a copy of the open file
