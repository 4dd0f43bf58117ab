"""`mamba2` against the pure-PyTorch Mamba-2 of `transformers`: training steps and peak memory, one thread.

    OMP_NUM_THREADS=1 python benchmarks/mamba2.py

Equal shapes: 4 layers, d 256, expand 2, state 64, heads of 64, V 8192, untied head; `transformers` with the chunk that
it comes with, 256, and with ours. Each candidate lives in a process of its own and does a step (forward, loss,
backward, fused AdamW) when it is its turn; CPU time, ratios as medians over the rounds. Peak memory is VmHWM since the
model was built and a step taken, less what the process held before it was built.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

WIDTH, DEPTH, STATE, HEAD, VOCABULARY, TOKENS = 256, 4, 64, 64, 8192, 2048


def ours(length: int, chunk: int) -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """A decoder of pre-norm blocks of `mamba2` and no feed-forward."""
    import bakeoff

    mixer = {"use": "mamba2", "state_size": STATE, "head_width": HEAD, "chunk": chunk}
    layer = {"use": "pre_norm", "mixer": mixer, "feed_forward": None}
    data = {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": length, "batch_tokens": length}
    model = {
        "d_model": WIDTH,
        "depth": DEPTH,
        "tied_embedding": False,
        "pattern": ["layer"],
        "blocks": {"layer": layer},
    }
    recipe = bakeoff.recipe({"model": model, "data": data, "trainer": {"max_steps": 1}})
    built = recipe.build("model", vocab_size=VOCABULARY, max_length=length).initialise(0)
    objective = recipe.build("objective")

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        total, weight = objective(built, {"tokens": tokens})[0]["loss"]
        return total / weight

    return built, loss


def theirs(length: int, chunk: int) -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """`Mamba2ForCausalLM` without its CUDA kernels."""
    from transformers import Mamba2Config, Mamba2ForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    heads = 2 * WIDTH // HEAD
    shape = {
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "state_size": STATE,
        "head_dim": HEAD,
        "num_heads": heads,
    }
    config = Mamba2Config(
        vocab_size=VOCABULARY, n_groups=1, chunk_size=chunk, use_cache=False, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, **shape,
    )  # fmt: skip
    model = Mamba2ForCausalLM(config)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=tokens).loss

    return model, loss


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def serve(build: Callable[..., Any], length: int, chunk: int, pipe: Connection) -> None:
    """Build, then take steps as asked and answer (seconds of CPU, bytes at the peak of all steps since building)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    build(length, chunk)  # imports are no part of the model's memory
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    model, loss = build(length, chunk)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(VOCABULARY, (TOKENS // length, length + 1))
    tokens = tokens if build is ours else tokens[:, :-1]
    pipe.send(sum(p.numel() for p in model.parameters()))
    while pipe.recv():
        start = time.process_time()
        loss(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        pipe.send((time.process_time() - start, resident("VmHWM") - before))


def race(length: int, rounds: int) -> dict[str, tuple[int, list[float], int]]:
    """Parameters, seconds of each round (one more is not counted), and peak bytes of each candidate."""
    chunk = 64
    wanted = {"mamba2": (ours, chunk)} | {f"transformers, chunk {size}": (theirs, size) for size in (256, chunk)}
    context = multiprocessing.get_context("spawn")
    pipes, sizes = {}, {}
    for name, (build, size) in wanted.items():
        pipes[name], far = context.Pipe()
        context.Process(target=serve, args=(build, length, size, far), daemon=True).start()
        far.close()
        sizes[name] = pipes[name].recv()
    times: dict[str, list[float]] = {name: [] for name in wanted}
    peaks = dict.fromkeys(wanted, 0)
    names = list(wanted)
    for i in range(rounds + 1):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            pipes[name].send(True)
            seconds, peaks[name] = pipes[name].recv()
            if i:
                times[name].append(seconds)
    for pipe in pipes.values():
        pipe.send(False)
    return {name: (sizes[name], times[name], peaks[name]) for name in names}


def main() -> None:
    """A table for each length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", nargs="*", type=int, default=[256, 1024])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    head = "| T | candidate | parameters | ms a step | time / ours | peak MiB | peak / ours |"
    print(f"{head}\n|---:|---|---:|---:|---:|---:|---:|")
    for length in arguments.lengths:
        results = race(length, arguments.rounds)
        _, own, least = results["mamba2"]
        for name, (size, times, peak) in results.items():
            slower = statistics.median(a / b for a, b in zip(times, own, strict=True))
            middle = 1e3 * statistics.median(times)
            memory = f"{peak / 2**20:.0f} | {peak / least:.2f}"
            print(f"| {length} | {name} | {size:,} | {middle:.0f} | {slower:.2f} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
