"""Memory of an optimizer step under each objective that learns from dialogues, as planned and as it was.

    OMP_NUM_THREADS=1 python -m benchmarks.feedback_memory

A transformer of d 512, 4 layers, V 8192, float32, AdamW; 32 rows of 87 tokens a step, two of them for each pair. Parity
on a scratchpad, whose rows are all as long; policies draw answers until a row is full. *Planned* is what
`bakeoff plan` says of the step. *Measured* is by how much the process grew at most in a whole run of three steps, which
draws, judges and collects as well: each objective has a process of its own, in which a small model has run before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import bakeoff
from bakeoff.evaluate.planning import plan_recipe

from benchmarks.common.tables import row, table

LENGTH, ROWS, NEW = 87, 32, 71
#: Under which the C library gives freed memory back at once, so that what is resident is what is held.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
POLICY = {"reward": {"use": "exact_match"}, "max_new_tokens": NEW}
ADAPTED: dict[str, Any] = {"adapters": {"rank": 8}}
SCORED: dict[str, Any] = {"model.head": {"use": "scored"}}
#: What it is called, the objective, the corpus, and what else the recipe changes.
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "sft": ({"use": "sft"}, "scratchpad", {}),
    "sft, adapters": ({"use": "sft"}, "scratchpad", ADAPTED),
    "dpo": ({"use": "dpo"}, "scratchpad_pairs", {}),
    "dpo, adapters": ({"use": "dpo"}, "scratchpad_pairs", ADAPTED),
    "ipo": ({"use": "ipo"}, "scratchpad_pairs", {}),
    "kto": ({"use": "kto"}, "scratchpad_graded", {}),
    "simpo": ({"use": "simpo"}, "scratchpad_pairs", {}),
    "orpo": ({"use": "orpo"}, "scratchpad_pairs", {}),
    "bradley_terry": ({"use": "bradley_terry"}, "scratchpad_pairs", SCORED),
    "process": ({"use": "process"}, "scratchpad_graded", SCORED),
    "verifying": ({"use": "verifying"}, "scratchpad_graded", SCORED),
    "ppo": ({"use": "ppo", **POLICY}, "scratchpad", {}),
    "ppo, adapters": ({"use": "ppo", **POLICY}, "scratchpad", ADAPTED),
    "grpo": ({"use": "grpo", **POLICY}, "scratchpad", {}),
    "grpo, beta 0": ({"use": "grpo", **POLICY, "beta": 0.0}, "scratchpad", {}),
    "rloo": ({"use": "rloo", **POLICY}, "scratchpad", {}),
    "expert_iteration": ({"use": "expert_iteration", **POLICY}, "scratchpad", {}),
}


def recipe_of(name: str, cache: str, *, width: int = 512, vocabulary: int = 8192) -> Any:
    """The recipe of a case."""
    objective, corpus, more = CASES[name]
    layer = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 8}, "feed_forward": {"use": "gated_mlp"}}
    tree: dict[str, Any] = {
        "model": {"d_model": width, "depth": 4, "pattern": ["layer"], "blocks": {"layer": layer}},
        "data": {
            "corpus": {"use": corpus, "task": "parity", "count": 400, "validation_count": 4, "lengths": [8, 8]},
            "tokenizer": {"use": "char"},
            "template": {"use": "plain"},
            "length": LENGTH,
            "batch_tokens": ROWS * LENGTH,
            "cache": cache,
        },
        "objective": objective,
        "sampler": {"use": "sample"},
        "trainer": {"max_steps": 3, "accelerator": "cpu"},
        "validation": {"every_steps": None, "tokens": LENGTH},
    }
    tree["model"]["vocab_size"] = vocabulary
    return bakeoff.recipe(tree, more)


def resident(field: str) -> int:
    """Bytes of this process: "VmRSS" now, "VmHWM" at most since it was last forgotten."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))


def measure(name: str, cache: str, folder: str) -> int:
    """Bytes by which this process grows in a run."""
    recipe_of(name, cache, width=16, vocabulary=512).fit(folder=Path(folder, "small"), progress=False)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    recipe_of(name, cache).fit(folder=Path(folder, "whole"), progress=False)
    return resident("VmHWM") - before


def main() -> None:
    """Print a table; with `--case`, the bytes of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, os.environ["BAKEOFF_CACHE"], arguments.folder)))
        return
    table("objective", "weights", "gradients", "optimizer", "activations", "planned, MiB", "measured", "ratio")
    with tempfile.TemporaryDirectory() as cache:
        for name in CASES:
            told = plan_recipe(recipe_of(name, cache)).memory
            assert told is not None
            command = [sys.executable, "-m", "benchmarks.feedback_memory", "--case", name, "--folder"]
            with tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "BAKEOFF_CACHE": cache, **GIVES_BACK}
                done = subprocess.run(
                    [*command, folder], env=environment, stdout=subprocess.PIPE, text=True, check=True
                )
            found = json.loads(done.stdout.splitlines()[-1])
            parts = (told.parameters, told.gradients, told.optimizer, told.activations, told.peak, found)
            row(name, *(f"{part / 2**20:.0f}" for part in parts), f"{found / told.peak:.2f}")


if __name__ == "__main__":
    main()
