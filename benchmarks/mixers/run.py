"""Recurrent and linear-attention mixers: training, memory and decoding, one thread, CPU time.

    OMP_NUM_THREADS=1 python -m benchmarks.mixers.run peers --lengths 256 1024    # against transformers
    OMP_NUM_THREADS=1 python -m benchmarks.mixers.run attention --lengths 256 8192
    OMP_NUM_THREADS=1 python -m benchmarks.mixers.run cost                        # per token, T 512 to 8192
    OMP_NUM_THREADS=1 python -m benchmarks.mixers.run decode                      # against transformers
    OMP_NUM_THREADS=1 python -m benchmarks.mixers.run positions                   # a token after 128 to 32,768

d 256, 4 layers, V 8192, float32, 2048 tokens a step (`cost`: 8192). Candidates take turns in rotating order, each in a
process of its own; medians of the rounds, ratios as medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.common.tables import ratio, row, table
from benchmarks.mixers.models import MIXERS, SHAPE, TRAINED_ONLY, decoder, matched, pairs
from benchmarks.mixers.race import decoding, race, training


def chosen(known: Sequence[str], only: Sequence[str] | None) -> list[str]:
    """The names asked for, all unless any are."""
    return [name for name in known if not only or name in only]


def peers(arguments: argparse.Namespace) -> None:
    """Training steps beside the class of transformers of the same shape."""
    table("model", "T", "candidate", "parameters", "ms a step", "time / ours", "peak MiB", "peak / ours")
    for length in arguments.lengths or [256, 1024]:
        for name in chosen(list(pairs(length)), arguments.only):
            turn = training(arguments.tokens // length, length, SHAPE.vocabulary)
            timed = race(pairs(length)[name], turn, arguments.rounds)
            own = timed["bakeoff"]
            for candidate, found in timed.items():
                spent = f"{1e3 * found.median:.0f}", f"{ratio(found.seconds, own.seconds):.2f}"
                peak = f"{found.peak:.0f}", f"{found.peak / own.peak:.2f}"
                row(name, length, candidate, f"{found.parameters:,}", *spent, *peak)


def attention(arguments: argparse.Namespace) -> None:
    """Training steps beside our own attention at equal parameters."""
    table("mixer", "T", "parameters", "tokens/s", "of attention", "peak MiB")
    for length in arguments.lengths or [256, 8192]:
        builds = matched(length)
        tokens = max(arguments.tokens, length)
        names = chosen([name for name in builds if name != "attention"], arguments.only)
        for name in names:
            both = {each: builds[each] for each in ("attention", name)}
            timed = race(both, training(tokens // length, length, SHAPE.vocabulary), arguments.rounds)
            found, base = timed[name], timed["attention"]
            rate = f"{tokens / found.median:,.0f}", f"{ratio(base.seconds, found.seconds):.2f}"
            row(name, length, f"{found.parameters:,}", *rate, f"{found.peak:.0f}")


def cost(arguments: argparse.Namespace) -> None:
    """Microseconds a token of training steps of equally many tokens, and how one row's peak memory grows."""
    lengths = arguments.lengths or [512, 2048, 8192]
    tokens = max(lengths)
    table("mixer", *(f"µs a token, T {length}" for length in lengths), "last / first", "KiB a token of a row")
    for name in chosen(list(MIXERS), arguments.only):
        builds = {str(length): matched(length)[name] for length in lengths}
        spent, peaks = [], []
        for length in lengths:
            one = {name: builds[str(length)]}
            timed = race(one, training(tokens // length, length, SHAPE.vocabulary), arguments.rounds)[name]
            spent.append(1e6 * timed.median / tokens)
            peaks.append(race(one, training(1, length, SHAPE.vocabulary), 1)[name].peak)
        slope = statistics.linear_regression(lengths, peaks).slope * 1024
        row(name, *(f"{each:.0f}" for each in spent), f"{spent[-1] / spent[0]:.2f}", f"{slope:.1f}")


def decode(arguments: argparse.Namespace) -> None:
    """Greedy decoding of one row beside the class of transformers of the same shape."""
    table("model", "batch", "candidate", "ms a token", "time / ours")
    for name in chosen([name for name in pairs(256) if name not in TRAINED_ONLY], arguments.only):
        for batch in (1, 8):
            turn = decoding(batch, 64, arguments.new, SHAPE.vocabulary)
            builds = {each: build for each, build in pairs(256)[name].items() if "mambapy" not in each}
            timed = race(builds, turn, arguments.rounds)
            for candidate, found in timed.items():
                spent = f"{1e3 * found.median / arguments.new:.2f}"
                row(name, batch, candidate, spent, f"{ratio(found.seconds, timed['bakeoff'].seconds):.2f}")


def positions(arguments: argparse.Namespace) -> None:
    """Milliseconds a token, and bytes of all states, after so many tokens; one row."""
    from bakeoff.interfaces.state import nbytes

    torch.set_num_threads(1)
    places = arguments.lengths or [128, 2048, 32768]
    table("mixer", *(f"ms after {n}" for n in places), *(f"state KiB after {n}" for n in places))
    for name in chosen(list(MIXERS), arguments.only):
        model: Any = decoder(MIXERS[name], max(places) + 64).model.eval()
        spent, held = [], []
        with torch.inference_mode():
            for place in places:
                state = model.empty_state(1, place + 64)
                for start in range(0, place, 1024):
                    ids = torch.randint(SHAPE.vocabulary, (1, min(1024, place - start)))
                    _, state = model.logits(ids, state)
                steps = []
                for _ in range(48):
                    start_time = time.process_time()
                    _, state = model.logits(torch.randint(SHAPE.vocabulary, (1, 1)), state)
                    steps.append(time.process_time() - start_time)
                spent.append(1e3 * statistics.median(steps))
                held.append(nbytes(state.layers) / 1024)
        row(name, *(f"{each:.2f}" for each in spent), *(f"{each:,.0f}" for each in held))


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {f.__name__: f for f in (peers, attention, cost, decode, positions)}
    parser.add_argument("what", choices=commands)
    parser.add_argument("--only", nargs="*", help="names of mixers or models")
    parser.add_argument("--lengths", nargs="*", type=int)
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    parser.add_argument("--new", type=int, default=64, help="tokens decoded")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    commands[arguments.what](arguments)


if __name__ == "__main__":
    main()
