"""Seconds that a checkpoint of two ranks takes: those for which training waits, and those behind it.

    OMP_NUM_THREADS=1 python -m benchmarks.checkpoints

Two gloo processes hold half of each tensor of a model and of its Adam state, as FSDP shares them out. Each number is of
the slower rank, the median of the rounds; beside them what one process takes for the same in one file. `fsync` is in
all that write, and reading checks the checksums.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bakeoff.parallel.checkpoints import read, read_whole, write
from bakeoff.parallel.pieces import Piece, cut
from bakeoff.parallel.writer import Writer
from bakeoff.parts.files import remove
from bakeoff.parts.tensor_files import load_plain, save_whole
from bakeoff.testing.ranks import Ranks
from torch import Tensor, distributed

from benchmarks.common.tables import row, table

RANKS = 2
KEYS = ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq")


def shapes(megabytes: int) -> dict[str, tuple[int, int]]:
    """Square matrices that take about so much together, in float32, with their Adam state."""
    side = 512
    count = max(megabytes * 2**20 // (4 * side * side * len(KEYS)), 1)
    return {f"{key}.{number}": (side, side) for key in KEYS for number in range(count)}


def pieces(megabytes: int, dim: int) -> dict[str, Piece]:
    """This rank's half along one dimension."""
    rank, made = distributed.get_rank(), {}
    for name, shape in shapes(megabytes).items():
        half = shape[dim] // RANKS
        boxes = cut(shape, dim, [(rank * half, (rank + 1) * half)])
        made[name] = Piece(torch.Size(shape), boxes, torch.randn(boxes[0].size))
    return made


def measured(call: Callable[[], object]) -> float:
    """Seconds of a call on the slower rank."""
    distributed.barrier()
    start = time.perf_counter()
    call()
    seconds = torch.tensor(time.perf_counter() - start)
    distributed.all_reduce(seconds, distributed.ReduceOp.MAX)
    return seconds.item()


def rounds(folder: str, megabytes: int, count: int) -> None:
    """Measure on all ranks; the first writes the seconds by name."""
    place, held, other = Path(folder, "step-1.ckpt"), pieces(megabytes, 0), pieces(megabytes, 1)
    writer = Writer(distributed.new_group(backend="gloo"))
    seconds: dict[str, list[float]] = {}
    for number in range(count + 1):
        waits = measured(lambda: writer.save(held, {}, place))
        behind = measured(writer.wait)
        if number == 0:
            seconds["first"] = [waits]
            continue
        found = {
            "waits": waits,
            "behind": behind,
            "write": measured(lambda: write(held, place, group=None)),
            "read": measured(lambda: read(place, held)),
            "relaid": measured(lambda: read(place, other)),
        }
        for name, value in found.items():
            seconds.setdefault(name, []).append(value)
    if distributed.get_rank() == 0:
        Path(folder, "seconds.json").write_text(json.dumps(seconds))


def alone(folder: Path, megabytes: int, count: int) -> dict[str, list[float]]:
    """One process: the file that it writes and reads, and the folder of the ranks."""
    tensors: dict[str, Tensor] = {name: torch.randn(shape) for name, shape in shapes(megabytes).items()}
    seconds: dict[str, list[float]] = {}
    file = folder / "one.ckpt"
    calls: dict[str, Callable[[], object]] = {
        "file": lambda: save_whole(tensors, file),
        "from_file": lambda: load_plain(file),
        "whole": lambda: read_whole(folder / "step-1.ckpt"),
    }
    for name, call in calls.items():
        for _ in range(count):
            start = time.perf_counter()
            call()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
    remove(file)
    return seconds


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        ranks = Ranks(RANKS, Path(name))
        ranks.run(Path(__file__), "rounds", folder=name, megabytes=chosen.megabytes, count=chosen.rounds)
        ranks.close()
        seconds = json.loads(Path(name, "seconds.json").read_text())
        seconds |= alone(Path(name), chosen.megabytes, chosen.rounds)
    bytes_held = sum(4 * rows * columns for rows, columns in shapes(chosen.megabytes).values())
    table(f"{bytes_held / 1e6:.0f} MB in {len(shapes(chosen.megabytes))} tensors", "seconds")
    for name, words in WORDS.items():
        row(words, f"{statistics.median(seconds[name]):.3f}")


WORDS = {
    "first": "two ranks, in the background: training waits, the first time",
    "waits": "… later, into the memory of the time before",
    "behind": "… behind the training",
    "write": "two ranks, training waiting for all of it",
    "read": "two ranks read it again",
    "relaid": "two ranks read it cut along the other dimension",
    "whole": "one process reads all of it",
    "file": "one process writes one file",
    "from_file": "one process reads that",
}

if __name__ == "__main__":
    main()
