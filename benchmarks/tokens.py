"""Text into the token store against raw `tiktoken`: megabytes a second, on one core and on two.

    python benchmarks/tokens.py

Raw is `Encoding.encode_ordinary` of each document, with the same merges, and nothing done with the ids; ours is
`write_store`, as a run prepares its data: documents read, checked, encoded, counted, written and forced to disk. Each
measurement is a process of its own that may use so many cores, and all take turns. Speeds of one core are by CPU time;
two cores are compared by wall time with one, which needs a machine that has two to spare. Ratios are medians over the
rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bakeoff.data.progress import Bar
from bakeoff.data.writing import write_store
from bakeoff.parts.corpora.python_source import PythonSource
from bakeoff.parts.tokenizers.bpe import BPETokenizer

MEGABYTE = 1e6


class Held:
    """The documents of a corpus in memory: reading files is no part of what is compared."""

    def __init__(self, texts: list[str]):
        self.texts = texts

    def documents(self, split: str) -> Iterator[str]:
        """All in the train split but the last, which is the validation split."""
        return iter(self.texts[:-1] if split == "train" else self.texts[-1:])


def raw(texts: list[str], encoding: Any, cores: int) -> None:
    """tiktoken alone; on several cores its own batches."""
    if cores == 1:
        for text in texts:
            encoding.encode_ordinary(text)
    else:
        encoding.encode_ordinary_batch(texts, num_threads=cores)


def store(texts: list[str], tokenizer: BPETokenizer, cores: int) -> None:
    """The whole way to a finished store."""
    with tempfile.TemporaryDirectory() as folder:
        write_store(Held(texts), tokenizer, Path(folder) / "store", {}, bar=Bar("tokens", 0, show=False))  # type: ignore[arg-type]


def timed(call: Callable[[int], None], cores: int) -> tuple[float, float]:
    """Seconds of CPU and of wall time that a call takes in a forked process on so many cores."""
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe(duplex=False)

    def run() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        spent, start = time.process_time(), time.perf_counter()
        call(cores)
        far.send((time.process_time() - spent, time.perf_counter() - start))

    process = context.Process(target=run)
    process.start()
    far.close()
    seconds = near.recv()
    process.join()
    return seconds


def main() -> None:
    """One row for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=10.0)
    arguments = parser.parse_args()
    texts, size = [], 0
    for text in PythonSource().documents("train"):
        texts.append(text)
        size += len(text.encode())
        if size >= arguments.megabytes * MEGABYTE:
            break
    tokenizer = BPETokenizer(vocab_size=8192)
    tokenizer.train(texts[: len(texts) // 4])
    encoding = tokenizer._encoding
    ways = {"tiktoken": partial(raw, texts, encoding), "token store": partial(store, texts, tokenizer)}
    print(f"{len(texts)} documents, {size / MEGABYTE:.1f} MB")
    runs = [(name, cores) for cores in (1, 2) for name in ways if cores <= len(os.sched_getaffinity(0))]
    times: dict[tuple[str, int], list[tuple[float, float]]] = {run: [] for run in runs}
    for i in range(arguments.rounds):
        for name, cores in runs[i % len(runs) :] + runs[: i % len(runs)]:
            times[name, cores].append(timed(ways[name], cores))
    megabytes = size / MEGABYTE
    print("| | MB/s, one core | of tiktoken | two cores over one, wall |\n|---|---:|---:|---:|")
    for name in ways:
        speed = megabytes / statistics.median(cpu for cpu, _ in times[name, 1])
        share = statistics.median(a[0] / b[0] for a, b in zip(times["tiktoken", 1], times[name, 1], strict=True))
        print(f"| {name} | {speed:.1f} | {share:.2f} |", end=" ")
        gain = [a[1] / b[1] for a, b in zip(times[name, 1], times.get((name, 2), []), strict=False)]
        print(f"{statistics.median(gain):.2f} |" if gain else "no second core |", flush=True)


if __name__ == "__main__":
    main()
