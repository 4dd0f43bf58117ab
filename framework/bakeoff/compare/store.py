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
from bakeoff.parts.files import free, seal, writing

FILE = "comparison.sqlite"
#: Raised when what a store holds changes its form.
FORM = 2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS comparison (key TEXT PRIMARY KEY, value TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    name TEXT PRIMARY KEY, arm TEXT NOT NULL, seed INTEGER NOT NULL, stage TEXT NOT NULL, point TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT, result TEXT, ended REAL, seal TEXT NOT NULL
);
"""
#: What a trial's seal is of: all that is read back.
_SEALED = "name, arm, seed, stage, point, state, reason, result"


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
    """Everything that the report is made from, in `folder/comparison.sqlite`.

    Every row bears a checksum. Raises `UserError` naming the file if it is damaged or cannot be written.
    """

    def __init__(self, folder: Path):
        self.path = folder / FILE
        with writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        with self._told():
            self.database = sqlite3.connect(self.path, isolation_level=None)
            self.database.execute("PRAGMA journal_mode=WAL")
            held = self.database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            form = self.database.execute("PRAGMA user_version").fetchone()[0] if held else FORM
            fault = self.database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if fault != "ok":
            self.database.close()
            raise self._damaged(" ".join(fault.split()))
        if form != FORM:
            self.database.close()
            raise UserError(
                f"{folder} was written by another version of bakeoff (its form is {form}, this one reads {FORM}); "
                "use that version, or another folder"
            )
        with self._told():
            self.database.executescript(_SCHEMA)
            self.database.execute(f"PRAGMA user_version={FORM}")

    @classmethod
    def open(cls, folder: Path) -> Store:
        """The store of a folder that holds one; otherwise a `UserError`."""
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} holds no comparison: there is no {FILE} in it")
        return cls(folder)

    def close(self) -> None:
        """Let go of the file."""
        self.database.close()

    def note(self, key: str, value: Any) -> None:
        """Keep `value` (anything that JSON holds) under `key`."""
        text = json.dumps(value)
        self._run("INSERT OR REPLACE INTO comparison VALUES (?, ?, ?)", (key, text, seal([key, text])))

    def noted(self, key: str, default: Any = None) -> Any:
        """What was kept under `key`."""
        for text, sealed in self._run("SELECT value, seal FROM comparison WHERE key = ?", (key,)):
            if seal([key, text]) != sealed:
                raise self._damaged(f"the checksum of '{key}' is wrong")
            return json.loads(text)
        return default

    def add(self, record: Record) -> None:
        """Enter a trial, unless one of its name is known."""
        row = (record.name, record.arm, record.seed, record.stage, json.dumps(record.point), record.state, None, None)
        self._run("INSERT OR IGNORE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, ?)", (*row, seal(row)))

    def finish(self, name: str, result: dict[str, Any] | None, reason: str | None) -> None:
        """Enter how a trial ended: done with its result, or failed with its reason."""
        self._set(name, "failed" if result is None else "done", reason, None if result is None else json.dumps(result))

    def retry(self, name: str) -> None:
        """Let a failed trial wait again."""
        self._set(name, "waiting", None, None)

    def trials(self) -> list[Record]:
        """All trials in the order in which they were entered."""
        found = []
        for *row, sealed in self._run(f"SELECT {_SEALED}, seal FROM trials ORDER BY rowid"):
            if seal(row) != sealed:
                raise self._damaged(f"the checksum of trial {row[0]} is wrong")
            name, arm, seed, stage, point, state, reason, result = row
            held = None if result is None else json.loads(result)
            found.append(Record(name, arm, seed, stage, json.loads(point), state, reason, held))
        return found

    def _set(self, name: str, state: str, reason: str | None, result: str | None) -> None:
        (known,) = self._run("SELECT name, arm, seed, stage, point FROM trials WHERE name = ?", (name,))
        self._run(
            "UPDATE trials SET state = ?, reason = ?, result = ?, ended = ?, seal = ? WHERE name = ?",
            (state, reason, result, time.time(), seal([*known, state, reason, result]), name),
        )

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._told():
            return self.database.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite refuses is the user's to mend: a full disk, a file that is damaged or none of its own."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise UserError(f"cannot use {self.path}: {error}; {free(self.path)}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, fault: str) -> UserError:
        return UserError(f"{self.path} is damaged: {fault}; move it away, and compare again in its folder")


@contextlib.contextmanager
def only_one(folder: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder against other comparisons; `waiting` is told once who holds it, then this waits."""
    with writing(folder / "lock"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "a+", encoding="utf-8", errors="replace")  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            waiting(f"process {lock.read().strip() or 'unknown'} compares in {folder}; waiting until it ends")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        lock.truncate()
        with writing(folder / "lock"):
            lock.write(str(os.getpid()))
            lock.flush()
        yield
