"""A block that runs chunk by chunk against one that runs whole, and one that is run anew whole: memory, time, reach.

    OMP_NUM_THREADS=1 python benchmarks/blockwise.py
    OMP_NUM_THREADS=1 python benchmarks/blockwise.py --reach

First one block (B 1, d 64, 4 heads, gated feed-forward): bytes of all storages that are alive at once over forward and
backward, in activations of T x d floats, and CPU time in rotating order. `--reach`: the longest row that a model trains
on (d 256, 4 layers, 4 heads, 1 key-value head, a window of 512, so that it ends) within a limit of resident memory, by
halving, each length in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from bakeoff.evaluate.peak import high_water
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.model.memory import Live
from bakeoff.model.recompute import recompute, recompute_blocks
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.needs import gather
from bakeoff.parts.positions.rope import RoPE
from bakeoff_blockwise import Blockwise, BlockwiseTransformer

WAYS = ("whole", "run anew whole", "by chunks")
LENGTHS = (1024, 2048, 4096, 8192, 16384)
WIDTH, HEADS, GIB = 64, 4, 2**30


def block(way: str, length: int, chunk: int) -> torch.nn.Module:
    """One block with numbers that are the same each time."""
    context = LayerContext(d_model=WIDTH, vocab_size=8, max_length=length)
    mixer = partial(Attention, n_heads=HEADS, position=RoPE)
    parts: dict[str, Any] = {"mixer": mixer, "feed_forward": GatedMLP}
    if way == "by chunks":
        parts["mixer"] = partial(mixer, op=partial(Blockwise, chunk=chunk))
        made: torch.nn.Module = BlockwiseTransformer(context, **parts, chunk=chunk)
    else:
        made = PreNorm(context, **parts)
    recompute(made, "full" if way == "run anew whole" else "none")
    torch.manual_seed(0)
    for parameter in made.parameters():
        parameter.data.normal_(0, 0.1)
    return made


def step(way: str, length: int, chunk: int) -> Callable[[], float]:
    """Forward and backward of one block; gives the peak in activations where `Live` is asked for."""
    made = block(way, length, chunk)
    sequence = Sequence(torch.zeros(1, length, dtype=torch.long)).prepare(gather(made))
    x = torch.randn(1, length, WIDTH, requires_grad=True)

    def run(measured: bool = False) -> float:
        for tensor in (x, *made.parameters()):
            tensor.grad = None
        if not measured:
            y = made(x, sequence).y
            y.backward(torch.ones_like(y))
            return 0.0
        with Live() as live:
            live.note(x)
            run()
        return live.peak / (length * WIDTH * 4)

    return run


def compare(length: int, chunk: int, rounds: int) -> str:
    """One row of the table."""
    steps = {way: step(way, length, chunk) for way in WAYS}
    peaks = [steps[way](measured=True) for way in WAYS]  # type: ignore[call-arg]
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for i in range(rounds):
        for way in WAYS[i % 3 :] + WAYS[: i % 3]:
            start = time.process_time()
            steps[way]()
            times[way].append(time.process_time() - start)
    of = [statistics.median(a / b for a, b in zip(times[way], times["whole"], strict=True)) for way in WAYS]
    milliseconds = 1e3 * statistics.median(times["whole"])
    cells = [f"{peak:.1f}" for peak in peaks] + [f"{milliseconds:.0f}"] + [f"{ratio:.2f}" for ratio in of[1:]]
    return f"| {length} | {chunk} | " + " | ".join(cells) + " |"


def train(way: str, length: int, chunk: int) -> None:
    """An optimizer step on one row, in this process; prints the most bytes that were resident."""
    import bakeoff

    mixer: dict[str, Any] = {
        "use": "attention",
        "n_heads": 4,
        "n_kv_heads": 1,
        "window": 512,
        "position": {"use": "rope"},
    }
    layer: dict[str, Any] = {"use": "pre_norm", "mixer": mixer, "feed_forward": {"use": "gated_mlp"}}
    if way == "by chunks":
        layer |= {"use": "blockwise_transformer", "chunk": chunk}
        mixer["op"] = {"use": "blockwise", "chunk": chunk}
    data = {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": length, "batch_tokens": length}
    model = {"d_model": 256, "depth": 4, "pattern": ["layer"], "blocks": {"layer": layer}}
    recipe = bakeoff.recipe({"model": model, "data": data, "trainer": {"max_steps": 1}})
    made: Any = recipe.build("model", vocab_size=256, max_length=length).initialise(0)
    recompute_blocks(made.backbone, "full" if way == "run anew whole" else "none")
    optimizer, objective = torch.optim.SGD(made.parameters(), 1e-3), Causal()
    terms, _ = objective(made, {"tokens": torch.randint(256, (1, length + 1))})
    sum(total for total, _ in terms.values()).backward()  # type: ignore[union-attr]
    optimizer.step()
    print(high_water())


def resident(way: str, length: int, chunk: int) -> int:
    """Bytes of `train` in a process of its own, whose freed memory goes back: glibc keeps holes between what stays."""
    command = [sys.executable, __file__, "--train", way, "--length", str(length), "--chunk", str(chunk)]
    fixed = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
    return int(subprocess.run(command, env=fixed, check=True, capture_output=True, text=True).stdout.split()[-1])


def reach(way: str, chunk: int, limit: float) -> str:
    """One row of the table: the longest row, to 4096 tokens, and what it takes."""
    fits, over, length = 0, 0, 32768
    peak = seconds = 0.0
    while not over or over - fits > 4096:
        start = time.perf_counter()
        found = resident(way, length, chunk)
        if found > limit:
            over = length
        else:
            fits, peak, seconds = length, found, time.perf_counter() - start
        length = (fits + over) // 2 // 1024 * 1024 if over else length * 3 // 2
    return f"| {way} | {fits} | {peak / GIB:.2f} | {peak / fits / 1024:.1f} | {seconds:.0f} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk", type=int, action="append")
    parser.add_argument("--length", type=int, action="append")
    parser.add_argument("--reach", action="store_true")
    parser.add_argument("--limit", type=float, default=4.0, help="GiB of resident memory")
    parser.add_argument("--train", choices=WAYS)
    given = parser.parse_args()
    chunks = given.chunk or ([512] if given.reach else [64, 256])
    if given.train:
        train(given.train, given.length[0], chunks[0])
    elif given.reach:
        print(f"| in {given.limit:g} GiB | longest row | GiB | KiB a token | s |\n|---|---:|---:|---:|---:|")
        for way in WAYS:
            print(reach(way, chunks[0], given.limit * GIB), flush=True)
    else:
        print("| T | chunk | whole | anew | chunks | whole, ms | anew / whole | chunks / whole |")
        print("|---:|---:|---:|---:|---:|---:|---:|---:|")
        for length in given.length or LENGTHS:
            for chunk in chunks:
                print(compare(length, chunk, given.rounds), flush=True)


if __name__ == "__main__":
    main()
