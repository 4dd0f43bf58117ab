"""Candidates in processes of their own that take a turn when they are asked to."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.common.candidate import Build, Candidate


class Timed(NamedTuple):
    """Parameters of a candidate, seconds of each counted turn, and MiB at the peak over what stood before it."""

    parameters: int
    seconds: list[float]
    peak: float

    @property
    def median(self) -> float:
        """Of the counted turns."""
        return statistics.median(self.seconds)


def training(batch: int, length: int, vocabulary: int) -> Callable[[Candidate], Callable[[], Any]]:
    """A turn that is one step: forward, loss, backward, fused AdamW."""

    def prepare(candidate: Candidate) -> Callable[[], Any]:
        optimizer = torch.optim.AdamW(candidate.model.parameters(), lr=1e-4, fused=True)
        ids = torch.randint(vocabulary, (batch, length + 1))

        def step() -> None:
            candidate.loss(ids).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return prepare


def decoding(batch: int, prompt: int, new: int, vocabulary: int) -> Callable[[Candidate], Callable[[], Any]]:
    """A turn that is one generation, its prefill included."""

    def prepare(candidate: Candidate) -> Callable[[], Any]:
        generate = candidate.generate
        assert generate is not None
        candidate.model.eval()
        prompts = torch.randint(min(256, vocabulary), (batch, prompt))
        return lambda: generate(prompts, new)

    return prepare


def race(
    builds: Mapping[str, Build], prepare: Callable[[Candidate], Callable[[], Any]], rounds: int, threads: int = 1
) -> dict[str, Timed]:
    """Turns in rotating order, the first of each not counted; CPU time of one thread, wall time of several.

    A candidate is built twice in its process, so that imports are no part of its memory.
    """
    context = multiprocessing.get_context("fork")
    pipes: dict[str, Connection] = {}
    sizes: dict[str, int] = {}
    for name, build in builds.items():
        pipes[name], far = context.Pipe()
        context.Process(target=_serve, args=(build, prepare, far, threads), daemon=True).start()
        far.close()
        sizes[name] = pipes[name].recv()
    seconds: dict[str, list[float]] = {name: [] for name in builds}
    peaks = dict.fromkeys(builds, 0.0)
    names = list(builds)
    for i in range(rounds + 1):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            pipes[name].send(True)
            spent, peaks[name] = pipes[name].recv()
            if i:
                seconds[name].append(spent)
    for pipe in pipes.values():
        pipe.send(False)
    return {name: Timed(sizes[name], seconds[name], peaks[name]) for name in names}


def _serve(build: Build, prepare: Callable[[Candidate], Callable[[], Any]], pipe: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    torch.manual_seed(0)
    build()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    candidate = build()
    turn = prepare(candidate)
    pipe.send(sum(p.numel() for p in candidate.model.parameters()))
    while pipe.recv():
        start = clock()
        turn()
        pipe.send((clock() - start, _resident("VmHWM") - before))


def _resident(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024
