"""What `bakeoff fit` as shipped adds to a bare PyTorch loop over the same model, data and optimizer.

    OMP_NUM_THREADS=1 python benchmarks/loop.py

A bar on a terminal, a CSV logger, clipping and checkpoints are on. Both train in one process by turns of twenty steps,
so that what else the machine does meets both alike; CPU time, one thread, medians over the turns.
"""

from __future__ import annotations

import argparse
import os
import pty
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import bakeoff
import torch
from bakeoff.data import Data
from bakeoff.train.optimizers import build_optimizer

#: Steps of the one loop before it is the other's turn.
TURN = 20

#: What is trained: width, depth, length, rows.
SIZES = {"d_model 64": (64, 2, 64, 2), "a step of 50 ms": (128, 3, 128, 4)}


def recipe_of(width: int, depth: int, length: int, rows: int, turns: int) -> Any:
    """A transformer on bytes, and a run of so many turns."""
    layer = {
        "use": "pre_norm",
        "mixer": {"use": "attention", "n_heads": 4, "position": {"use": "rope"}},
        "feed_forward": {"use": "gated_mlp", "width": 3 * width},
    }
    return bakeoff.recipe(
        {
            "name": "loop",
            "model": {"d_model": width, "depth": depth, "pattern": ["layer"], "blocks": {"layer": layer}},
            "data": {
                "corpus": {"use": "python_source"},
                "tokenizer": {"use": "byte"},
                "length": length,
                "batch_tokens": length * rows,
            },
            "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-3, "fused": True},
            "trainer": {
                "max_steps": TURN * (turns + 2),
                "accelerator": "cpu",
                "gradient_clip_val": 1.0,
                "logger": {"use": "lightning.pytorch.loggers.CSVLogger", "save_dir": "."},
            },
            "validation": {"tokens": length * rows},
            "checkpoint": {"every_steps": 500},
        }
    )


def bare_steps(recipe: Any) -> Iterator[None]:
    """A loop that does what training needs and nothing else: one turn of it each time that it is asked."""
    data = recipe.build("data").prepare(progress=False)
    model = recipe.build("model", vocab_size=data.vocab_size, max_length=data.length).initialise(0)
    objective = recipe.build("objective")
    optimizer = build_optimizer(recipe.build("optimizer"), model)
    wanted = objective.tokens_wanted(data.length)
    batches = iter(data.training(tokens_wanted=wanted, seed=0))
    while True:
        for _ in range(TURN):
            total, weight = objective(model, next(batches))[0]["loss"]
            (total / weight).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        yield


class Turns:
    """Training batches that let the bare loop have its turn in between, and note the CPU time of both."""

    def __init__(self, bare: Iterator[None], training: Callable[..., Any]):
        self.bare, self.training = bare, training
        self.fitted: list[float] = []
        self.plain: list[float] = []

    def __call__(self, data: Data, **arguments: Any) -> Turns:
        """In the place of `Data.training`."""
        self.loader = self.training(data, **arguments)
        self.loader.num_workers = 0
        self.num_workers = 0
        return self

    def __iter__(self) -> Iterator[Any]:
        mark = time.process_time()
        for number, batch in enumerate(self.loader):
            if number and number % TURN == 0:
                ended = time.process_time()
                self.fitted.append((ended - mark) / TURN)
                next(self.bare)
                mark = time.process_time()
                self.plain.append((mark - ended) / TURN)
            yield batch


@contextmanager
def terminal() -> Iterator[None]:
    """Standard error is a terminal that another process reads."""
    ours, theirs = pty.openpty()
    kept = os.dup(2)
    with subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        os.dup2(theirs, 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            for descriptor in (ours, theirs, kept):
                os.close(descriptor)
            reader.terminate()


def measure(size: tuple[int, int, int, int], turns: int) -> tuple[list[float], list[float]]:
    """Seconds of CPU a step in each turn, bare and fitted; the first turn is not counted."""
    recipe = recipe_of(*size, turns)
    taking_turns = Turns(bare_steps(recipe), Data.training)
    next(taking_turns.bare)
    watched = mock.patch.object(Data, "training", lambda data, **wanted: taking_turns(data, **wanted))
    with tempfile.TemporaryDirectory() as folder, terminal(), watched:
        recipe = recipe.override({"trainer.logger.save_dir": folder})
        recipe.fit(folder=Path(folder) / "run", progress=True)
    return taking_turns.plain[1:], taking_turns.fitted[1:]


def main() -> None:
    """One row a size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=80)
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), default=list(SIZES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| | bare, ms a step | fit, ms a step | added, ms | added, % |\n|---|---:|---:|---:|---:|")
    for name in arguments.sizes:
        bare, fitted = measure(SIZES[name], arguments.turns)
        added = statistics.median(b - a for a, b in zip(bare, fitted, strict=True))
        share = statistics.median(b / a - 1 for a, b in zip(bare, fitted, strict=True))
        row = (1e3 * statistics.median(bare), 1e3 * statistics.median(fitted), 1e3 * added, 100 * share)
        print(f"| {name} |", " | ".join(f"{number:.2f}" for number in row), "|", flush=True)


if __name__ == "__main__":
    main()
