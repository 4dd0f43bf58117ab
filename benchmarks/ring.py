"""What a ring of ranks costs beside one process, and its memory as the sequence grows with the ring.

    OMP_NUM_THREADS=1 python -m benchmarks.ring [--rounds 7] [--environments FOLDER]

Seconds are CPU time, user and system, of all processes together, for forward, loss and backward of the same batch: in
one process, and in two over gloo that share out its rows. The other library is `ring-attention-pytorch`; it gathers
the logits, and its loss is taken of them. Memory is the storages that are live on a rank at the peak of a step.
"""

from __future__ import annotations

import argparse
import json
import site
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bakeoff.data.preparing import cache_folder
from bakeoff.model import LanguageModel
from bakeoff.model.memory import Live
from bakeoff.parallel.context import share_rows
from bakeoff.recipe import recipe
from bakeoff.testing.ranks import Ranks
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from benchmarks.common.tables import row, table
from benchmarks.peers.environments import python_for

WIDTH, DEPTH, HEADS, VOCABULARY = 256, 4, 4, 256
LENGTH, ROWS = 1024, 2
#: Steps of a round.
STEPS = 3
PEER = "ring-attention-pytorch"

#: What is run: name, ranks, and how it is built.
COSTS: list[tuple[str, int, dict[str, str]]] = [
    ("bakeoff", 1, {}),
    ("bakeoff, ring, contiguous", 2, {"op": "ring", "order": "contiguous"}),
    ("bakeoff, ring, zigzag", 2, {"op": "ring", "order": "zigzag"}),
    ("bakeoff, ulysses", 2, {"op": "ulysses", "order": "contiguous"}),
    (PEER, 1, {"peer": "whole"}),
    (f"{PEER}, ring", 2, {"peer": "ring"}),
    (f"{PEER}, striped ring", 2, {"peer": "striped"}),
]
RINGS = (1, 2, 4)


def ours(length: int, op: str = "ring", order: str = "zigzag") -> Callable[[Tensor], Tensor]:
    """The loss of (B, T + 1) ids by a transformer whose rows all ranks share out."""
    attention = {"use": "attention", "n_heads": HEADS, "position": {"use": "rope"}}
    layer = {"use": "pre_norm", "mixer": attention, "feed_forward": {"use": "mlp", "width": 4 * WIDTH}}
    model = {"d_model": WIDTH, "depth": DEPTH, "pattern": ["layer"], "blocks": {"layer": layer}}
    said = recipe(
        {
            "model": {**model, "tied_embedding": False},
            "data": {
                "corpus": {"use": "python_source"},
                "tokenizer": {"use": "byte"},
                "length": length,
                "batch_tokens": ROWS * length,
            },
            "trainer": {"max_steps": 1},
            "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-3},
        }
    )
    built: LanguageModel = said.build("model", vocab_size=VOCABULARY, max_length=length).initialise(0)
    objective, ranks = said.build("objective"), distributed.get_world_size()
    if ranks > 1:
        share_rows(built, init_device_mesh("cpu", (ranks,)), order=order, op=op)

    def loss(tokens: Tensor) -> Tensor:
        total, weight = objective(built, {"tokens": tokens})[0]["loss"]
        return total / weight

    return loss


def theirs(peer: str) -> Callable[[Tensor], Tensor]:
    """The same by the other library's transformer; its blocks are as long as a rank's part of the sequence."""
    from ring_attention_pytorch import RingTransformer

    each = LENGTH // distributed.get_world_size()
    ring = {"ring_attn": peer != "whole", "striped_ring_attn": peer == "striped", "ring_seq_size": each}
    shape = {"num_tokens": VOCABULARY, "dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": WIDTH // HEADS}
    model = RingTransformer(**shape, causal=True, bucket_size=min(each, 512), **ring)

    def loss(tokens: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return loss


def spend(folder: str, file: str, packages: str, **built: str) -> None:
    """Each rank writes its CPU seconds of a step."""
    if packages:
        site.addsitedir(packages)
    torch.manual_seed(0)
    loss = theirs(built["peer"]) if packages else ours(LENGTH, **built)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1))
    loss(tokens).backward()
    distributed.barrier()
    start = time.process_time()
    for _ in range(STEPS):
        loss(tokens).backward()
    tell(folder, file, (time.process_time() - start) / STEPS)


def hold(folder: str, file: str, length: int) -> None:
    """Each rank writes the peak of a step, of one row."""
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (1, length + 1))
    with Live() as live:
        loss = ours(length)
        loss(tokens).backward()
        live.peak = live.now
        loss(tokens).backward()
    tell(folder, file, live.peak)


def tell(folder: str, file: str, number: float) -> None:
    """Leave a number of this rank where `told` finds it."""
    Path(folder, f"{file}-{distributed.get_rank()}.json").write_text(json.dumps(number))


def told(folder: str, file: str, ranks: int) -> list[float]:
    """What each rank has left."""
    return [json.loads(Path(folder, f"{file}-{rank}.json").read_text()) for rank in range(ranks)]


def costs(pools: dict[int, Ranks], folder: str, rounds: int, packages: str) -> None:
    """Prints CPU seconds of a step, of all ranks, and how they compare with the library's own one process."""
    spent: dict[str, list[float]] = {name: [] for name, _, _ in COSTS}
    for turn in range(rounds):
        first = turn % len(COSTS)
        for name, ranks, built in COSTS[first:] + COSTS[:first]:
            theirs_at = packages if "peer" in built else ""
            pools[ranks].run(Path(__file__), "spend", folder=folder, file="seconds", packages=theirs_at, **built)
            spent[name].append(sum(told(folder, "seconds", ranks)))
    table("", "processes", "CPU s a step, all", "fastest", "times one process of its own", "times ours in one")
    alone: list[float] = []
    for name, ranks, _ in COSTS:
        times = spent[name]
        alone = times if ranks == 1 else alone
        own, our = (statistics.median(times) / statistics.median(one) for one in (alone, spent["bakeoff"]))
        row(name, ranks, f"{statistics.median(times):.3f}", f"{min(times):.3f}", f"{own:.2f}", f"{our:.2f}")


def memory(pools: dict[int, Ranks], folder: str) -> None:
    """Prints the peak of the fullest rank, of a row that grows with the ring."""
    table("ranks", "tokens of the row", "peak of a rank, MiB")
    for ranks in RINGS:
        pools[ranks].run(Path(__file__), "hold", folder=folder, file="peak", length=LENGTH * ranks)
        row(ranks, LENGTH * ranks, f"{max(told(folder, 'peak', ranks)) / 2**20:.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--environments", type=Path, default=cache_folder(None) / "peers")
    chosen = parser.parse_args(arguments)
    python: Any = python_for(PEER, chosen.environments)
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    with tempfile.TemporaryDirectory() as folder:
        pools = {}
        for ranks in RINGS:
            place = Path(folder, str(ranks))
            place.mkdir()
            pools[ranks] = Ranks(ranks, place)
        memory(pools, folder)
        pools[4].close()
        costs(pools, folder, chosen.rounds, str(packages))
        for pool in pools.values():
            pool.close()


if __name__ == "__main__":
    main()
