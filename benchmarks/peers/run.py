"""Our Llama against those of `transformers`, `x-transformers` and `litgpt`: training, decoding, memory.

    python benchmarks/peers/run.py [--shapes tiny small] [--rounds 9]

Every candidate has a process of its own with one thread; in each round all take one turn, and the order rotates.
Figures are CPU time, user and system, and medians over the rounds, so that what else the machine does meets all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bakeoff.cli.doctor import ALLOCATOR
from bakeoff.data.preparing import cache_folder
from candidates import CANDIDATES
from environments import python_for
from shapes import SHAPES, Shape

OURS, THEIRS = "bakeoff", "transformers"

#: How a column's processes are started: environment, and whether models are compiled.
SETTINGS = {
    "eager": ({}, False),
    "eager, large pages": (ALLOCATOR, False),
    "compiled": ({}, True),
}


class Process:
    """A worker that is asked by name: `process.ask("train")`."""

    def __init__(self, running: subprocess.Popen[str]):
        self.running = running

    def ask(self, what: str, **details: Any) -> dict[str, Any]:
        """The answer to a request."""
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        print(json.dumps({"do": what, **details}), file=self.running.stdin, flush=True)
        answer = self.running.stdout.readline()
        if not answer:
            raise SystemExit(f"{' '.join(map(str, self.running.args))} ended without an answer to '{what}'")
        return json.loads(answer)


@contextmanager
def started(candidate: str, shape: str, setting: str, folder: Path) -> Iterator[Process]:
    """A worker with its model built."""
    extra, compiled = SETTINGS[setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
    command = [str(python_for(candidate, folder)), str(Path(__file__).with_name("worker.py"))]
    running = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        process = Process(running)
        process.ask("build", candidate=candidate, shape=shape, compiled=compiled)
        yield process
    finally:
        assert running.stdin is not None
        running.stdin.close()
        running.wait()


def rounds(processes: dict[str, Process], count: int, what: str, **details: Any) -> dict[str, list[float]]:
    """CPU seconds of each candidate in each round, after one that warms up."""
    spent: dict[str, list[float]] = {name: [] for name in processes}
    names = list(processes)
    for turn in range(count + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds = processes[name].ask(what, **details)["seconds"]
            if turn:
                spent[name].append(seconds)
    return spent


def training(shape: Shape, processes: dict[str, Process], count: int) -> None:
    """Prints tokens a second, our advantage, the share of the matrix product's rate, and the peak memory."""
    ours = processes[OURS]
    for process in processes.values():
        process.ask("train")
    rates = [ours.ask("multiply")["rate"] for _ in range(3)]
    spent = rounds(processes, count, "train")
    rates += [ours.ask("multiply")["rate"] for _ in range(3)]
    peak = max(rates)
    print(f"\nmatrix product {peak / 1e9:.0f} GFLOP/s at best; a step is {shape.flops / 1e9:.1f} GFLOP\n")
    print("| | ms a step | fastest | tokens/s | times ours | share of peak | peak memory, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, times in spent.items():
        step = statistics.median(times)
        ratio = step / statistics.median(spent[OURS])
        memory = processes[name].ask("memory")["over"]
        tokens = shape.batch * shape.length / step
        share = shape.flops / step / peak
        print(
            f"| {name} | {1e3 * step:.0f} | {1e3 * min(times):.0f} | {tokens:,.0f} | {ratio:.2f} | {share:.0%} "
            f"| {memory:.0f} |",
            flush=True,
        )


def decoding(shape: Shape, processes: dict[str, Process], count: int) -> None:
    """Prints milliseconds a token of greedy decoding with a cache, its prefill included."""
    both = {name: processes[name] for name in (OURS, THEIRS)}
    print(f"\nprompt {shape.prompt}, {shape.new} new ids\n")
    print("| | batch | ms a token | fastest | times ours | times reading the weights once |")
    print("|---|---:|---:|---:|---:|---:|")
    for batch in (1, 8):
        spent = rounds(both, count, "decode", batch=batch)
        read = statistics.median(both[OURS].ask("read")["seconds"] for _ in range(count))
        for name, times in spent.items():
            token = statistics.median(times) / shape.new
            ratio = token * shape.new / statistics.median(spent[OURS])
            print(
                f"| {name} | {batch} | {1e3 * token:.2f} | {1e3 * min(times) / shape.new:.2f} | {ratio:.2f} "
                f"| {token / read:.2f} |",
                flush=True,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """One table a shape and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--environments", type=Path, default=cache_folder(None) / "peers")
    chosen = parser.parse_args(arguments)
    for shape in chosen.shapes:
        for setting in chosen.settings:
            print(f"\n### {shape}, {setting}", flush=True)
            with ExitStack() as stack:
                processes = {
                    name: stack.enter_context(started(name, shape, setting, chosen.environments)) for name in CANDIDATES
                }
                training(SHAPES[shape], processes, chosen.rounds)
                if setting == "eager":
                    decoding(SHAPES[shape], processes, chosen.rounds)


if __name__ == "__main__":
    main()
