"""The results of a comparison on disk: one SQLite file, one writer, one process at a time on a folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError

#: Raised when what a store holds changes its form.
FORM = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS comparison (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    name TEXT PRIMARY KEY, arm TEXT NOT NULL, seed INTEGER NOT NULL, stage TEXT NOT NULL, point TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT, result TEXT, ended REAL
);
"""


@dataclass(frozen=True)
class Record:
    """One trial as it is stored."""

    name: str
    """Folder of the trial below `trials/`: arm, seed and a hash of all that determines it."""
    arm: str
    seed: int
    stage: str
    """`tune` for the search over `tune`, `run` for what is reported."""
    point: dict[str, Any]
    """The tuning point: overrides by path; empty where nothing is tuned."""
    state: str
    """`waiting`, `done` or `failed`."""
    reason: str | None = None
    result: dict[str, Any] | None = None


class Store:
    """Everything that the report is made from, in `folder/comparison.sqlite`."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.database = sqlite3.connect(folder / "comparison.sqlite", isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        held = self.database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        form = self.database.execute("PRAGMA user_version").fetchone()[0] if held else FORM
        if form != FORM:
            self.database.close()
            raise UserError(
                f"{folder} was written by another version of bakeoff (its form is {form}, this one reads {FORM}); "
                "use that version, or another folder"
            )
        self.database.executescript(_SCHEMA)
        self.database.execute(f"PRAGMA user_version={FORM}")

    @classmethod
    def open(cls, folder: Path) -> Store:
        """The store of a folder that holds one; otherwise a `UserError`."""
        if not (folder / "comparison.sqlite").is_file():
            raise UserError(f"{folder} holds no comparison: there is no comparison.sqlite in it")
        return cls(folder)

    def close(self) -> None:
        """Let go of the file."""
        self.database.close()

    def note(self, key: str, value: Any) -> None:
        """Keep `value` (anything that JSON holds) under `key`."""
        self.database.execute("INSERT OR REPLACE INTO comparison VALUES (?, ?)", (key, json.dumps(value)))

    def noted(self, key: str, default: Any = None) -> Any:
        """What was kept under `key`."""
        row = self.database.execute("SELECT value FROM comparison WHERE key = ?", (key,)).fetchone()
        return default if row is None else json.loads(row[0])

    def add(self, record: Record) -> None:
        """Enter a trial, unless one of its name is known."""
        self.database.execute(
            "INSERT OR IGNORE INTO trials VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, NULL)",
            (record.name, record.arm, record.seed, record.stage, json.dumps(record.point), record.state),
        )

    def finish(self, name: str, result: dict[str, Any] | None, reason: str | None) -> None:
        """Enter how a trial ended: done with its result, or failed with its reason."""
        self.database.execute(
            "UPDATE trials SET state = ?, reason = ?, result = ?, ended = ? WHERE name = ?",
            (
                "failed" if result is None else "done",
                reason,
                None if result is None else json.dumps(result),
                time.time(),
                name,
            ),
        )

    def retry(self, name: str) -> None:
        """Let a failed trial wait again."""
        self.database.execute("UPDATE trials SET state = 'waiting', reason = NULL WHERE name = ?", (name,))

    def trials(self) -> list[Record]:
        """All trials in the order in which they were entered."""
        rows = self.database.execute(
            "SELECT name, arm, seed, stage, point, state, reason, result FROM trials ORDER BY rowid"
        )
        return [
            Record(
                name, arm, seed, stage, json.loads(point), state, reason, None if result is None else json.loads(result)
            )
            for name, arm, seed, stage, point, state, reason, result in rows
        ]


@contextlib.contextmanager
def only_one(folder: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder against other comparisons; `waiting` is told once who holds it, then this waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            waiting(f"process {lock.read().strip() or 'unknown'} compares in {folder}; waiting until it ends")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        yield
