"""Several processes that compute together over gloo on one machine, and answer one call after the other.

    ranks = shared_ranks(2)
    ranks.run(Path(__file__).with_name("cases_on_ranks.py"), "layer_equals_one", heads=4)

calls `layer_equals_one(heads=4)` of that file on every rank, inside one process group, and fails where it fails on any.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any

SECONDS = 120.0
#: Until all ranks are there: on a machine with much else to do, importing torch alone can take longer than a call.
START_SECONDS = 600.0


class RanksFailed(AssertionError):
    """A call failed on some ranks; `reasons` are their tracebacks."""

    def __init__(self, message: str, reasons: dict[int, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


class Ranks:
    """`n` processes on the loopback interface, one thread each; they start at the first call and stay.

    A call that fails on a rank, or takes longer than `seconds`, raises `RanksFailed` with the ranks it failed on, why,
    and the end of their logs, which stand in `folder`. A rank that does not answer ends all of them, and the next call
    starts them anew.
    """

    def __init__(self, n: int, folder: Path, *, seconds: float = SECONDS) -> None:
        self.n, self.folder, self.seconds = n, folder, seconds
        self.logs = [folder / f"rank-{rank}.txt" for rank in range(n)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, cases: Path, name: str, **arguments: Any) -> None:
        """Call the function `name` of the file `cases` on all ranks; its arguments go as JSON."""
        failed = {} if self.processes else self._begin()
        if not failed:
            line = json.dumps([str(cases), name, arguments]).encode() + b"\n"
            for process in self.processes:
                with contextlib.suppress(BrokenPipeError):  # it has ended, which its silence says below
                    _pipe(process.stdin).write(line)
            failed = self._failures(self.seconds)
        if failed:
            shown = "\n".join(f"rank {rank} of {self.n}: {reason}" for rank, reason in failed.items())
            logs = "".join(f"--- log of rank {rank}\n{_end_of(log)}\n" for rank, log in enumerate(self.logs))
            raise RanksFailed(f"{name} {arguments}\n{shown}\n{logs}", failed)

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()
        self.processes = []

    def _begin(self) -> dict[int, str]:
        """Why ranks did not start, by rank."""
        store = self.folder / "store"
        store.unlink(missing_ok=True)
        words = [sys.executable, "-m", "bakeoff.testing.ranks", str(self.n), str(store), str(self.seconds)]
        loopback = "lo" if sys.platform == "linux" else "lo0"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
        for rank, log in enumerate(self.logs):
            with open(log, "wb") as errors:
                process = subprocess.Popen(
                    [*words, str(rank)],
                    env=environment,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
                self.processes.append(process)
        return self._failures(START_SECONDS)

    def _failures(self, seconds: float) -> dict[int, str]:
        """Why a call failed, by the rank it failed on, once every rank has answered or `seconds` are over."""
        waiting = {_pipe(process.stdout): rank for rank, process in enumerate(self.processes)}
        told: dict[int, str] = {}
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            ready, _, _ = select.select(list(waiting), [], [], 1.0)
            for pipe in ready:
                told[waiting.pop(pipe)] = json.loads(pipe.readline() or '"ended"')
            if any(told.values()):
                deadline = min(deadline, time.monotonic() + 2.0)  # the others may wait for what failed
        failed = {rank: reason for rank, reason in told.items() if reason}
        if waiting:
            for rank in waiting.values():
                self.processes[rank].send_signal(signal.SIGUSR1)  # its stack goes to its log
            time.sleep(0.5)
            self.close()
        elif "ended" in failed.values():
            self.close()
        return failed or dict.fromkeys(waiting.values(), f"no answer after {seconds:g} s")


@cache
def shared_ranks(n: int) -> Ranks:
    """The one pool of `n` ranks of this process, ended with it."""
    folder = tempfile.TemporaryDirectory(prefix="bakeoff-ranks-", ignore_cleanup_errors=True)
    ranks = Ranks(n, Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(ranks.close)  # called before the cleanup
    return ranks


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]


@cache
def _module(cases: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(cases.replace(".", "_"), cases)
    assert spec is not None, cases
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _serve(n: int, store: str, seconds: float, rank: int) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints goes to the log
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=n, timeout=timedelta(seconds=seconds)
    )
    print(json.dumps(""), file=answers, flush=True)
    for line in sys.stdin:
        cases, name, arguments = json.loads(line)
        torch.manual_seed(0)
        try:
            getattr(_module(cases), name)(**arguments)
            told = ""
        except BaseException:
            told = traceback.format_exc()
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
