"""Can the ranks of this machine meet, do they add up right, and how fast is the way between them?"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

#: Elements of float32 in the messages that are timed.
SIZES = (1, 2**14, 2**20, 2**22)


@dataclass
class Probe:
    """What was found: one line for each thing that is wrong, and times.

    Parameters
    ----------
    times : (collective, bytes that a rank gives, seconds, bytes a second that a rank sends).
    """

    size: int
    backend: str
    meeting: float | None = None
    times: list[tuple[str, int, float, float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def probe(size: int, *, device: str, seconds: float = 60.0) -> Probe:
    """Start `size` processes on this machine, let them measure, and end them all within `seconds`.

    Parameters
    ----------
    device : "cuda", each rank on a device of its own, over NCCL; or "cpu", over gloo.
    """
    found = Probe(size, "nccl" if device == "cuda" else "gloo")
    with tempfile.TemporaryDirectory(prefix="bakeoff-probe-") as folder:
        logs = [Path(folder, f"rank-{rank}.txt") for rank in range(size)]
        processes = [_start(rank, size, device, Path(folder), log) for rank, log in enumerate(logs)]
        try:
            deadline = time.monotonic() + seconds
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(deadline - time.monotonic(), 0.0))
            codes = [process.poll() for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for rank, (code, log) in enumerate(zip(codes, logs, strict=True)):
            if code != 0:
                how = f"ended with exit code {code}" if code is not None else f"did not answer within {seconds:g} s"
                found.wrong.append(f"rank {rank} {how}: {_last(log) or 'it said nothing'}")
        answer = Path(folder, "answer")
        if answer.exists():
            told = json.loads(answer.read_text())
            found.meeting, found.times = told["meeting"], [tuple(row) for row in told["times"]]
            found.wrong += told["wrong"]
    return found


def _start(rank: int, size: int, device: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "bakeoff.parallel.probe", str(rank), str(size), device, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if device == "cpu":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    with open(log, "wb") as file:
        return subprocess.Popen(words, env=environment, stdout=file, stderr=file)


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _measure(rank: int, size: int, device: str, folder: Path) -> None:
    torch.set_num_threads(1)
    place = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(place)
    start = time.perf_counter()
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=45),
    )
    distributed.barrier()
    told: dict[str, Any] = {"meeting": time.perf_counter() - start, "times": [], "wrong": wrong_sums(place)}
    for name, call, share in _collectives(size):
        for elements in SIZES:
            mine = torch.ones(elements * size if name == "all-to-all" else elements, device=place)
            seconds = _timed(partial(call, mine), place)
            told["times"].append((name, mine.nbytes, seconds, mine.nbytes * share / seconds))
    if rank == 0:
        (folder / "answer").write_text(json.dumps(told))
    distributed.barrier()
    distributed.destroy_process_group()


def wrong_sums(place: torch.device) -> list[str]:
    """What an all-reduce over known numbers got wrong: rank r gives r + 1 and its own rank's element."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    mine = torch.zeros(size + 1, dtype=torch.float64, device=place)
    mine[rank], mine[size] = rank + 1, rank + 1
    distributed.all_reduce(mine)
    expected = [*range(1, size + 1), size * (size + 1) / 2]
    held = mine.tolist()
    return [] if held == expected else [f"an all-reduce gave {held} in place of {expected}"]


def _collectives(size: int) -> list[tuple[str, Callable[[Tensor], None], float]]:
    """Name, call, and the bytes that a rank sends over a ring for each that it gives."""

    def gather(mine: Tensor) -> None:
        distributed.all_gather_into_tensor(mine.new_empty(size * mine.numel()), mine)

    def exchange(mine: Tensor) -> None:
        distributed.all_to_all_single(torch.empty_like(mine), mine)

    def reduce(mine: Tensor) -> None:
        distributed.all_reduce(mine)

    others = size - 1
    return [
        ("all-reduce", reduce, 2 * others / size),
        ("all-gather", gather, float(others)),
        ("all-to-all", exchange, others / size),
    ]


def _timed(call: Callable[[], None], place: torch.device, *, repeats: int = 5) -> float:
    """Median seconds of a call."""
    found = []
    for _ in range(repeats + 1):
        distributed.barrier()
        start = time.perf_counter()
        call()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        found.append(time.perf_counter() - start)
    return sorted(found[1:])[repeats // 2]


if __name__ == "__main__":
    _measure(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
