"""Several processes that compute together over gloo on one machine, and answer one call after the other."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

SECONDS = 120.0


class Ranks:
    """`n` processes that wait for calls of functions in a file; they start at the first.

    A call that fails on a rank, or takes longer than `SECONDS`, ends all of them, and says on which ranks it did.
    """

    def __init__(self, n: int, cases: Path, folder: Path):
        self.n, self.cases, self.folder = n, cases, folder
        self.logs = [folder / f"rank-{rank}.txt" for rank in range(n)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def _begin(self) -> None:
        store = self.folder / "store"
        store.unlink(missing_ok=True)
        words = [sys.executable, __file__, str(self.n), str(self.cases), str(store)]
        loopback = "lo" if sys.platform == "linux" else "lo0"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
        for rank, log in enumerate(self.logs):
            with open(log, "wb") as errors:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
                self.processes.append(subprocess.Popen([*words, str(rank)], env=environment, bufsize=0, **pipes))

    def run(self, name: str, **arguments) -> None:
        """Call the function `name` on all ranks; its arguments go as JSON."""
        if not self.processes:
            self._begin()
        line = json.dumps([name, arguments]).encode() + b"\n"
        for process in self.processes:
            process.stdin.write(line)
        waiting = {process.stdout: rank for rank, process in enumerate(self.processes)}
        told, deadline = {}, time.monotonic() + SECONDS
        while waiting and time.monotonic() < deadline:
            ready, _, _ = select.select(list(waiting), [], [], 1.0)
            for pipe in ready:
                told[waiting.pop(pipe)] = json.loads(pipe.readline() or '"ended"')
            if any(told.values()):
                deadline = min(deadline, time.monotonic() + 2.0)  # the others may wait for what failed
        failed = {rank: reason for rank, reason in told.items() if reason}
        failed |= dict.fromkeys(waiting.values(), f"no answer after {SECONDS} s") if not failed else {}
        if failed:
            self.close()
            logs = "".join(self.logs[rank].read_text(errors="replace")[-2000:] for rank in failed)
            shown = "\n".join(f"rank {rank} of {self.n}: {reason}" for rank, reason in failed.items())
            raise AssertionError(f"{name} {arguments}\n{shown}\n{logs}")

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()
        self.processes = []


def _serve(n: int, cases: str, store: str, rank: int) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints goes to the log
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=n, timeout=timedelta(seconds=SECONDS)
    )
    spec = importlib.util.spec_from_file_location("cases", cases)
    module = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = module
    spec.loader.exec_module(module)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            getattr(module, name)(**arguments)
            told = ""
        except Exception:
            told = traceback.format_exc()
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
