"""The side of a trial that runs in the trial's own process."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError

#: Seconds between two messages of one trial.
INTERVAL = 0.25


def begin(target: str, folder: str, threads: int, environment: dict[str, str], pipe: connection.Connection) -> None:
    """Run `module:function` on a trial folder in a session of its own, that ends when the parent does.

    What it prints goes to `log.txt` in the folder; an exception becomes one message on the pipe and exit code 1.
    """
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    log = os.open(Path(folder, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        import torch

        torch.set_num_threads(threads)
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)(Path(folder), Throttled(pipe.send))
    except BaseException as error:
        with contextlib.suppress(OSError):  # the disk may be full
            traceback.print_exc()
        pipe.send({"failed": reason_of(error)})
        raise SystemExit(1) from None


class Throttled:
    """Passes on at most one message in `INTERVAL` seconds."""

    def __init__(self, send: Callable[[dict[str, Any]], None]):
        self.send = send
        self.last = float("-inf")

    def __call__(self, numbers: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self.last >= INTERVAL:
            self.last = now
            self.send(numbers)


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())[:600]
    if isinstance(error, UserError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _end_with_parent() -> None:
    """Kill this session, data workers included, as soon as the process that compares is gone."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)
