"""From text to answers to feedback: all of `recipes/align` on sorting, by seed, and what came of each.

    OMP_NUM_THREADS=1 python -m benchmarks.feedback --folder FOLDER --seeds 0 1 2

For each seed every run of the chain is trained, each from the one that it begins from, and asked the same held-out
exercises: how often it is right, how far it is from the fine-tuned model, and how sure of itself. Then the fine-tuned
model's answers are chosen among by the reward model. A folder that holds finished runs is gone on with.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import bakeoff
from bakeoff.evaluate import Measured, asked
from bakeoff.train import import_weights

from benchmarks.common.tables import row, table

RUNS = Path("runs/align")
CHAIN = ("base", "sft", "rejection_sampling", "dpo", "grpo", "rloo", "expert_iteration", "ppo", "reward", "ppo_learned")
#: Of them, those that answer; the rest have a text to go on with, or judge.
ANSWERING = [name for name in CHAIN if name not in ("base", "reward")]
EXACT = {"use": "exact_match"}
HELD_OUT = {"use": "scratchpad", "task": "sorting", "form": "direct", "count": 4000, "validation_count": 256}
QUESTIONS = {"corpus": {**HELD_OUT, "lengths": [6, 8]}, "max_new_tokens": 16}


def trained(name: str, seed: int) -> Any:
    """The run of a recipe of the chain, in this folder."""
    folder = RUNS / name
    if not (folder / "summary.json").exists():
        recipe = bakeoff.recipe(f"bakeoff:align/{name}.yaml", {"seed": seed})
        if name == "reward" and not (RUNS / "scored").exists():
            import_weights(recipe, RUNS / "sft", RUNS / "scored")
        recipe.fit(folder=folder)
    return bakeoff.load_run(folder)


def measured(run: Any, task: dict[str, Any]) -> dict[str, float]:
    """The figures of a task."""
    (entry,) = asked([task])
    return entry.take(Measured.of(run.model, run.data, run.recipe), lambda told: None).figures


def main() -> None:
    """Train what is missing, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    home = arguments.folder.resolve()
    table("run", "seed", "right", "KL, nats an answer", "entropy, nats a token", "tokens an answer")
    for seed in arguments.seeds:
        (home / f"seed-{seed}").mkdir(parents=True, exist_ok=True)
        os.chdir(home / f"seed-{seed}")
        for name in CHAIN:
            run = trained(name, seed)
            if name in ANSWERING:
                task = {"use": "answers", "reward": EXACT, "reference": str(RUNS / "sft"), **QUESTIONS}
                found = measured(run, task)
                told = [f"{found[figure]:.3f}" for figure in ("reward", "kl", "entropy", "length")]
                row(name, str(seed), *told)
    table("seed", "one answer", "best of 16 by the reward model", "weighted majority", "majority", "any of 16")
    for seed in arguments.seeds:
        os.chdir(home / f"seed-{seed}")
        judge = {"use": "learned_reward", "run": str(RUNS / "reward")}
        task = {"use": "best_of_n", "judge": EXACT, "reward": judge, "weight": "exp", "samples": 16, **QUESTIONS}
        found = measured(bakeoff.load_run(RUNS / "sft"), task)
        names = ("mean", "best_of_n", "weighted_majority", "majority", "pass_at_n")
        row(str(seed), *(f"{found[name]:.3f}" for name in names))


if __name__ == "__main__":
    main()
