"""What `fit` adds to a bare PyTorch loop, CPU time a step, one thread: the same model, data and optimizer.

python benchmarks/loop.py
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bakeoff
import torch

RECIPE = {
    "model": {
        "d_model": 64,
        "depth": 1,
        "pattern": ["layer"],
        "blocks": {
            "layer": {
                "use": "pre_norm",
                "mixer": {"use": "attention", "n_heads": 4, "position": {"use": "rope"}},
                "feed_forward": {"use": "gated_mlp", "width": 128},
            }
        },
    },
    "data": {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": 64, "batch_tokens": 128},
    "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-3, "fused": True},
    "trainer": {"max_steps": 500, "accelerator": "cpu", "gradient_clip_val": 1.0},
    "validation": {"tokens": 256},
}


def bare(recipe: bakeoff.recipe) -> float:
    """CPU seconds a step of a loop that does what training needs and nothing else."""
    data = recipe.build("data").prepare(progress=False)
    model = recipe.build("model", vocab_size=data.vocab_size, max_length=data.length).initialise(0)
    objective = recipe.build("objective")
    optimizer = recipe.build("optimizer")(model.parameters())
    wanted = objective.tokens_wanted(data.length)
    batches = iter(data.training(tokens_wanted=wanted, seed=0, first_step=0, ranks=1, rank=0))

    def step() -> None:
        total, weight = objective(model, next(batches))[0]["loss"]
        (total / weight).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return _per_step(lambda: [step() for _ in range(recipe.tree["trainer"]["max_steps"])], recipe)


def fitted(recipe: bakeoff.recipe) -> float:
    """CPU seconds a step of `fit` as shipped, less what it costs to start and end: two lengths, their difference."""
    steps = recipe.tree["trainer"]["max_steps"]
    taken = []
    for length in (steps, 2 * steps):
        longer = recipe.override({"trainer.max_steps": length})
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            longer.fit(folder=Path(folder) / "run", progress=lambda numbers: None)
            taken.append(time.process_time() - start)
    return (taken[1] - taken[0]) / steps


def _per_step(run: Callable[[], object], recipe: bakeoff.recipe) -> float:
    run()  # warm
    start = time.process_time()
    run()
    return (time.process_time() - start) / recipe.tree["trainer"]["max_steps"]


def main() -> None:
    """Alternate the two and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    recipe = bakeoff.recipe(RECIPE)
    pairs = [(bare(recipe), fitted(recipe)) for _ in range(rounds)]
    for name, times in zip(("bare loop", "bakeoff fit"), zip(*pairs, strict=True), strict=True):
        print(f"{name:<12} {1e3 * statistics.median(times):.2f} ms a step (best {1e3 * min(times):.2f})")
    print(f"added        {1e3 * statistics.median(b - a for a, b in pairs):.2f} ms a step")


if __name__ == "__main__":
    main()
