"""Executor `local`: trials in processes of their own on this machine."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

from bakeoff.compare import child
from bakeoff.compare.devices import devices_of, slot_environments
from bakeoff.errors import UserError
from bakeoff.interfaces.executor import Executor, Outcome

#: Seconds that a trial has for a last checkpoint when the comparison is stopped.
PATIENCE = 5.0
#: Imported once by the process that all trials are forked from.
PRELOAD = ("torch", "lightning.pytorch", "bakeoff.compare.trial")


class Local(Executor):
    """Trials on this machine, `slots` at a time, each in a process of its own with `threads` threads.

    Processes are forked from one server that has torch and Lightning loaded, so that a trial starts in
    milliseconds after the first. With several slots and several GPUs each slot has GPUs of its own: as many as a
    trial's `trainer.devices` says, or an equal share where that is `auto`.
    Threads default to the cores of the machine divided by the slots.
    """

    target: ClassVar[str] = "bakeoff.compare.trial:run_trial"
    """`module:function` that runs a trial folder and leaves `result.json` in it."""

    def __init__(self, *, slots: int = 1, threads: int | None = None):
        if slots < 1 or (threads is not None and threads < 1):
            raise UserError(f"executor local: slots and threads must be at least 1, got {slots} and {threads}")
        self.slots = slots
        self.threads = threads or max(1, cores() // slots)

    def run(self, trials: Items[Path], progress: Callable[[str, dict[str, Any]], None]) -> Iterator[Outcome]:
        """Run each folder once and yield the outcomes as they come; whatever happens, no process is left behind.

        Raises `UserError` before any starts if they want more GPUs at once than there are.
        """
        environments = slot_environments(self.slots, [devices_of(folder) for folder in trials])
        waiting = list(reversed(trials))
        running: dict[int, _Running] = {}
        try:
            while waiting or running:
                for slot in range(self.slots):
                    if waiting and slot not in running:
                        folder = waiting.pop()
                        progress(folder.name, {})
                        running[slot] = self._start(folder, environments[slot])
                wait([handle for run in running.values() for handle in run.handles()])
                for slot, run in list(running.items()):
                    run.listen(progress)
                    if run.ended():
                        del running[slot]
                        yield run.outcome()
        finally:
            for run in running.values():
                run.process.terminate()
            for run in running.values():
                run.stop()

    def _start(self, folder: Path, environment: dict[str, str]) -> _Running:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOAD))
        here, there = context.Pipe(duplex=False)
        with _environment(OMP_NUM_THREADS=str(self.threads), MKL_NUM_THREADS=str(self.threads)), _no_main_module():
            arguments = (self.target, str(folder), self.threads, environment, there)
            process = context.Process(target=child.begin, args=arguments)
            process.start()
        there.close()
        return _Running(folder, process, here)


@dataclass
class _Running:
    folder: Path
    process: BaseProcess
    pipe: Connection
    reason: str | None = None
    closed: bool = False

    def handles(self) -> list[Any]:
        return [self.process.sentinel] if self.closed else [self.process.sentinel, self.pipe]

    def listen(self, progress: Callable[[str, dict[str, Any]], None]) -> None:
        """Pass on what the trial has said."""
        try:
            while not self.closed and self.pipe.poll():
                message = self.pipe.recv()
                if "failed" in message:
                    self.reason = message["failed"]
                else:
                    progress(self.folder.name, message)
        except (EOFError, OSError):
            self.closed = True

    def ended(self) -> bool:
        return self.process.exitcode is not None and (self.closed or not self.pipe.poll())

    def outcome(self) -> Outcome:
        """How it ended; what else of its session still lives is killed."""
        code = self.process.exitcode or 0
        if code != 0:
            _kill_session(self.process.pid)
        self.pipe.close()
        self.process.join()
        result = self.folder / "result.json"
        if code == 0 and result.is_file():
            return Outcome(self.folder.name, json.loads(result.read_text()), None)
        return Outcome(self.folder.name, None, self.reason or _why(code, self.folder))

    def stop(self) -> None:
        """Give the trial, which was asked to end, time for a checkpoint; then end all that it started."""
        self.process.join(PATIENCE)
        _kill_session(self.process.pid)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kill_session(pid: int | None) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if pid is not None and os.getpgid(0) != pid:
            os.killpg(pid, signal.SIGKILL)


def _why(code: int, folder: Path) -> str:
    if code == -signal.SIGKILL:
        return "killed by SIGKILL: most likely it asked for more memory than the machine has"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}; see {folder / 'log.txt'}"
    if code == 0:
        return f"ended without a result; see {folder / 'log.txt'}"
    return f"ended with exit code {code}; see {folder / 'log.txt'}"


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """The environment that the fork server, and with it every trial, starts in."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide `__main__` while a process starts: trials need nothing of the script or notebook that compares,
    and running a script again in each of them would compare in there too."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
