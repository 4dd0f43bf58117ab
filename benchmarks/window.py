"""A window of 64 against full causal attention, and what op `auto` takes at short lengths: CPU time, one thread.

    OMP_NUM_THREADS=1 python benchmarks/window.py

First whole training steps of a Llama-shaped model (d 256, 4 layers, 4 heads, 2 key-value heads, V 8192, fused AdamW) on
2048 tokens, or one row where that is longer; then the op alone, forward and backward. All candidates in one process, in
rotating order; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import bakeoff
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.parts.attention.auto import Auto
from bakeoff.parts.attention.banded import Banded
from bakeoff.parts.attention.sdpa import SDPA
from bakeoff.parts.causal import Causal
from bakeoff.train.optimizers import build_optimizer

WINDOW, TOKENS, WIDTH, HEADS, KV_HEADS, VOCABULARY = 64, 2048, 256, 4, 2, 8192


def rounds_of(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of CPU of each candidate in each round, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for i in range(rounds + 1):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = time.process_time()
            candidates[name]()
            if i:
                times[name].append(1e3 * (time.process_time() - start))
    return times


def ratio(times: list[float], others: list[float]) -> float:
    """Median of the rounds' quotients."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def training_step(window: int | None, length: int) -> Callable[[], object]:
    """One optimizer step on random tokens."""
    mixer = {
        "use": "attention",
        "n_heads": HEADS,
        "n_kv_heads": KV_HEADS,
        "window": window,
        "position": {"use": "rope"},
    }
    layer = {"use": "pre_norm", "mixer": mixer, "feed_forward": {"use": "gated_mlp", "width": 704}}
    recipe = bakeoff.recipe(
        {
            "model": {"d_model": WIDTH, "depth": 4, "pattern": ["layer"], "blocks": {"layer": layer}},
            "data": {
                "corpus": {"use": "python_source"},
                "tokenizer": {"use": "byte"},
                "length": length,
                "batch_tokens": length,
            },
            "trainer": {"max_steps": 1},
        }
    )
    model: Any = recipe.build("model", vocab_size=VOCABULARY, max_length=length).initialise(0)
    optimizer = build_optimizer(lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True), model)
    objective = Causal()
    tokens = torch.randint(VOCABULARY, (max(1, TOKENS // length), length + 1))

    def step() -> None:
        total, weight = objective(model, {"tokens": tokens})[0]["loss"]
        (total / weight).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def op_alone(op_class: type, window: int | None, length: int) -> Callable[[], object]:
    """Forward and backward of an op on as many rows as make the tokens, the mask included."""
    op = op_class(LayerContext(d_model=WIDTH, vocab_size=8, max_length=length, window=window))
    batch = max(1, TOKENS // length)
    q, k, v = (torch.randn(batch, length, h, WIDTH // HEADS, requires_grad=True) for h in (HEADS, KV_HEADS, KV_HEADS))
    tokens, gradient = torch.zeros(batch, length, dtype=torch.long), torch.randn(batch, length, HEADS, WIDTH // HEADS)

    def run() -> None:
        q.grad = k.grad = v.grad = None
        op(q, k, v, Sequence(tokens).prepare(op.needs()))[0].backward(gradient)

    return run


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", nargs="*", type=int, default=[512, 1024, 4096])
    parser.add_argument("--ops", nargs="*", type=int, default=[64, 96, 128, 192, 256, 512, 1024, 2048])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.steps:
        print(f"| training step, T | window {WINDOW}, ms | full, ms | full / window |\n|---:|---:|---:|---:|")
    for length in arguments.steps:
        steps = {"window": training_step(WINDOW, length), "full": training_step(None, length)}
        times = rounds_of(steps, arguments.rounds)
        window, full = times["window"], times["full"]
        middle = (statistics.median(window), statistics.median(full))
        print(f"| {length} | {middle[0]:.0f} | {middle[1]:.0f} | {ratio(full, window):.2f} |", flush=True)
    if arguments.ops:
        head = f"| op alone, T | window {WINDOW}, auto, ms | banded / auto | sdpa with a mask / auto | full / auto |"
        print(f"\n{head}\n|---:|---:|---:|---:|---:|")
    for length in arguments.ops:
        ops = {"auto": Auto, "banded": Banded, "sdpa": SDPA}
        candidates = {name: op_alone(op, WINDOW, length) for name, op in ops.items()}
        times = rounds_of(candidates | {"full": op_alone(SDPA, None, length)}, arguments.rounds)
        ratios = " | ".join(f"{ratio(times[name], times['auto']):.2f}" for name in ("banded", "sdpa", "full"))
        print(f"| {length} | {statistics.median(times['auto']):.2f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
