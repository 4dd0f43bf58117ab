"""Ranks of a run as a launcher starts them: forks of this process, which has imported all that they need."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from bakeoff.cli.main import main
from bakeoff.train import fit  # noqa: F401 - imported once, for all ranks
from bakeoff.train.job import launched_job


class Ranks:
    """`bakeoff WORDS` on each rank, in an environment as torchrun makes it; what each says goes to a file.

    `words` may differ between ranks: one list for each.
    """

    def __init__(self, n: int, words: list[str] | list[list[str]], logs: Path):
        logs.mkdir(parents=True, exist_ok=True)
        each = words if isinstance(words[0], list) else [words] * n
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.logs = [logs / f"rank-{rank}.txt" for rank in range(n)]
        sys.stdout.flush()
        self.pids = [self._start(rank, n, port, each[rank]) for rank in range(n)]
        self.codes: dict[int, int] = {}

    def _start(self, rank: int, n: int, port: int, words: list[str]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            with open(self.logs[rank], "wb", buffering=0) as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "GROUP_RANK": 0}
            os.environ |= {key: str(value) for key, value in own.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
            os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
            launched_job.cache_clear()
            code = main(words)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def running(self) -> bool:
        """Whether any rank is."""
        for pid in self.pids:
            if pid not in self.codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self.codes) < len(self.pids)

    def wait(self, seconds: float = 120.0) -> list[int]:
        """Exit codes by rank, negative for a signal; fails where a rank takes longer, and ends all."""
        end = time.monotonic() + seconds
        try:
            while self.running():
                assert time.monotonic() < end, f"the ranks stall: {self.errors}"
                time.sleep(0.02)
        finally:
            self.end()
        return [self.codes[pid] for pid in self.pids]

    def end(self) -> None:
        """Kill whatever still runs."""
        for pid in self.pids:
            if pid not in self.codes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @property
    def errors(self) -> str:
        """What all ranks have said."""
        return "\n".join(log.read_text(errors="replace") for log in self.logs)

    @property
    def messages(self) -> list[str]:
        """What bakeoff itself has said, on all ranks."""
        return [line for line in self.errors.splitlines() if line.startswith("bakeoff: ")]
