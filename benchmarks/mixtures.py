"""Mixtures of experts: training, what more experts cost, and decoding; CPU time, of several threads wall time.

    OMP_NUM_THREADS=2 python -m benchmarks.mixtures training --threads 2    # beside dense models and transformers
    OMP_NUM_THREADS=1 python -m benchmarks.mixtures experts   # 8, 32 and 128 experts
    OMP_NUM_THREADS=1 python -m benchmarks.mixtures decode    # one row, beside transformers, and what is read

A Llama shape of d 256, 4 layers, 4 heads on 2, V 8192, T 256, batch 8, float32, untied; two of E experts of width 352
stand beside one dense feed-forward of 704. Candidates take turns in rotating order, each in a process of its own;
medians of the rounds, ratios as medians over rounds.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from benchmarks.common.candidate import Build, Candidate, Shape, of_recipe, of_transformers
from benchmarks.common.families import experts as mixture
from benchmarks.common.families import llama, llama_config, mixtral_config
from benchmarks.common.tables import ratio, row, table
from benchmarks.mixers.race import Timed, decoding, race, training

SHAPE = Shape(width=256, depth=4, heads=4, kv_heads=2, hidden=704, vocabulary=8192)
LENGTH, BATCH = 256, 8
#: How `transformers` computes its experts; a third way copies the weights of every token's experts.
IMPLEMENTATIONS = ("grouped_mm", "eager")


def ours(feed_forward: dict[str, Any] | None) -> Candidate:
    """The Llama shape with this feed-forward, or the dense one."""
    return of_recipe(llama(SHAPE, LENGTH, feed_forward=feed_forward), SHAPE, LENGTH)


def advantage(other: Timed, own: Timed) -> str:
    """How many times as long the other takes."""
    return f"{ratio(other.seconds, own.seconds):.2f}"


def candidates() -> dict[str, Build]:
    """Dense and mixed, ours and theirs."""
    mixtral = {
        f"transformers Mixtral, {how}": partial(
            of_transformers, "Mixtral", mixtral_config(SHAPE), SHAPE, experts_implementation=how
        )
        for how in IMPLEMENTATIONS
    }
    return {
        "bakeoff, dense": partial(ours, None),
        "bakeoff, 2 of 8 experts": partial(ours, mixture(SHAPE)),
        "transformers Llama": partial(of_transformers, "Llama", llama_config(SHAPE), SHAPE),
        **mixtral,
    }


def train(arguments: argparse.Namespace) -> None:
    """Training steps, beside the dense model of the same library."""
    timed = race(candidates(), training(BATCH, LENGTH, SHAPE.vocabulary), arguments.rounds, arguments.threads)
    dense = {"bakeoff": timed["bakeoff, dense"], "transformers": timed["transformers Llama"]}
    table("training", "parameters", "tokens/s", "of its own dense", "of our dense", "peak MiB")
    for name, found in timed.items():
        own = dense[name.partition(",")[0].partition(" ")[0]]
        rate = f"{BATCH * LENGTH / found.median:,.0f}"
        row(
            name,
            f"{found.parameters:,}",
            rate,
            advantage(own, found),
            advantage(dense["bakeoff"], found),
            f"{found.peak:.0f}",
        )


def experts(arguments: argparse.Namespace) -> None:
    """Forward passes and memory of ever more experts, two a token."""

    def forward(candidate: Candidate) -> Any:
        ids = torch.randint(SHAPE.vocabulary, (BATCH, LENGTH + 1))

        def run() -> None:
            with torch.no_grad():
                candidate.loss(ids)

        return run

    builds: dict[str, Build] = {"dense": candidates()["bakeoff, dense"]}
    builds |= {str(n): partial(ours, mixture(SHAPE, n)) for n in (8, 32, 128)}
    timed, trained = race(builds, forward, arguments.rounds), race(builds, training(BATCH, LENGTH, SHAPE.vocabulary), 1)
    table("experts", "parameters", "forward, ms", "of dense", "training peak, MiB", "MiB an expert and layer")
    for name, found in timed.items():
        peak, more = trained[name].peak, "–"
        if name not in ("dense", "8"):
            more = f"{(peak - trained['8'].peak) / (int(name) - 8) / SHAPE.depth:.2f}"
        spent = f"{1e3 * found.median:.0f}"
        row(name, f"{found.parameters:,}", spent, advantage(found, timed["dense"]), f"{peak:.0f}", more)


def decode(arguments: argparse.Namespace) -> None:
    """Greedy decoding of one row and of eight, and the weights that a step of one row reads."""
    from bakeoff.model.cost import plan

    table("decoding", "batch", "ms a token", "of its own dense", "time / our mixture")
    for batch in (1, 8):
        timed = race(candidates(), decoding(batch, 64, arguments.new, SHAPE.vocabulary), arguments.rounds)
        for name, found in timed.items():
            own = timed["bakeoff, dense" if name.startswith("bakeoff") else "transformers Llama"]
            spent = f"{1e3 * found.median / arguments.new:.2f}"
            row(name, batch, spent, advantage(own, found), advantage(found, timed["bakeoff, 2 of 8 experts"]))
    table("one token reads", "weights, MiB", "of all weights, MiB")
    nodes = {"dense": None, **{f"2 of {n}": mixture(SHAPE, n) for n in (8, 32, 128)}}
    for name, node in nodes.items():
        model: Any = ours(node).model
        costs = plan(model, LENGTH)
        row(name, f"{costs.read_bytes / 2**20:.1f}", f"{costs.weight_bytes / 2**20:.1f}")


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"training": train, "experts": experts, "decode": decode}
    parser.add_argument("what", choices=commands)
    parser.add_argument("--new", type=int, default=64, help="tokens decoded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, default=1, help="of each training candidate; wall time where there are several"
    )
    arguments = parser.parse_args()
    commands[arguments.what](arguments)


if __name__ == "__main__":
    main()
