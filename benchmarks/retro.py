"""RETRO's training: beside retro-pytorch, beside the same decoder that retrieves nothing, by layers and by k.

    OMP_NUM_THREADS=1 python -m benchmarks.retro training    # beside retro-pytorch: --head-width 32 and 64
    OMP_NUM_THREADS=1 python -m benchmarks.retro slowdown    # by the number of layers that retrieve, and by k

d 256, 4 layers of 8 heads (retro-pytorch takes no other number; with heads of 64 ours has a line with 4, too), V 8192,
T 256, batch 8, float32, untied; chunks of 64, neighbours of 128 random tokens; an encoder of 2 layers of d 256.
The first and the third layer retrieve. Candidates take turns in rotating order, each in a process of its own; medians
of the rounds, ratios as medians over rounds; CPU time, of several threads wall time. Needs
`pip install --no-deps retro-pytorch einops`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import types
from functools import cache, partial
from typing import Any

import torch
from bakeoff.model import LanguageModel
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.positions.rope import RoPE
from bakeoff_retro import Retro
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common.candidate import Build, Candidate
from benchmarks.common.tables import ratio, row, table
from benchmarks.mixers.race import race, training

WIDTH, DEPTH, HEADS, VOCABULARY, LENGTH, BATCH, CHUNK = 256, 4, 8, 8192, 256, 8, 64
#: Which layers retrieve, counted from 0, where so many do.
LAYERS: dict[int, tuple[int, ...]] = {0: (), 1: (0,), 2: (0, 2), 4: (0, 1, 2, 3)}


def retrieved(batch: int, k: int) -> Tensor:
    """Random neighbours of all chunks, (B, C, k, L)."""
    return torch.randint(1, VOCABULARY, (batch, LENGTH // CHUNK, k, 2 * CHUNK))


def model(layers: tuple[int, ...], head_width: int, heads: int = HEADS) -> LanguageModel:
    """A decoder, of which some layers retrieve."""
    attention = partial(Attention, n_heads=heads, head_width=head_width, position=RoPE)
    parts: dict[str, Any] = {"mixer": attention, "feed_forward": partial(MLP, bias=True)}
    widths = {"head_width": head_width, "encoder_head_width": head_width}
    blocks: dict[str, Any] = {
        "retro": partial(Retro, **parts, n_heads=heads, **widths, chunk=CHUNK),
        "plain": partial(PreNorm, **parts),
    }
    pattern = ["retro" if i in layers else "plain" for i in range(DEPTH)]
    decoder = partial(Decoder, depth=DEPTH, pattern=pattern, blocks=blocks)
    size = {"d_model": WIDTH, "vocab_size": VOCABULARY, "max_length": 2 * LENGTH, "tied_embedding": False}
    return LanguageModel(**size, backbone=decoder).initialise(0)  # type: ignore[arg-type]


def ours(layers: tuple[int, ...], k: int, head_width: int, heads: int = HEADS) -> Candidate:
    """The model under its objective, with k neighbours of every chunk."""
    made, objective = model(layers, head_width, heads), Causal()
    texts = retrieved(BATCH, k)
    last = torch.arange(CHUNK - 1, LENGTH, CHUNK).expand(BATCH, -1)
    told = {"neighbours": texts, "neighbours_real": torch.ones_like(texts).bool(), "neighbours_last": last}

    def loss(ids: Tensor) -> Tensor:
        total, weight = objective(made, {"tokens": ids, **(told if layers else {})})[0]["loss"]
        return total / weight

    return Candidate(made, loss)


@cache
def peer() -> Any:
    """retro-pytorch's module; what searches in that package, and wants libraries for it, is left out."""
    spec = importlib.util.find_spec("retro_pytorch")
    if spec is None:
        raise SystemExit("retro-pytorch is missing: pip install --no-deps retro-pytorch einops")
    package, retrieval = types.ModuleType("retro_pytorch"), types.ModuleType("retro_pytorch.retrieval")
    package.__path__ = list(spec.submodule_search_locations or [])
    retrieval.BERT_VOCAB_SIZE = VOCABULARY  # type: ignore[attr-defined]
    sys.modules |= {"retro_pytorch": package, "retro_pytorch.retrieval": retrieval}
    return importlib.import_module("retro_pytorch.retro_pytorch")


def theirs(layers: tuple[int, ...], k: int, head_width: int) -> Candidate:
    """retro-pytorch's model; without neighbours by its logits, as it has no loss then."""
    made = peer().RETRO(
        num_tokens=VOCABULARY, max_seq_len=LENGTH, enc_dim=WIDTH, enc_depth=2, dec_dim=WIDTH, dec_depth=DEPTH,
        dec_cross_attn_layers=tuple(i + 1 for i in layers), heads=HEADS, dim_head=head_width, chunk_size=CHUNK,
    )  # fmt: skip
    texts = retrieved(BATCH, k) if layers else None

    def loss(ids: Tensor) -> Tensor:
        return made(ids, retrieved=texts, return_loss=True) if layers else of_logits(ids)

    def of_logits(ids: Tensor) -> Tensor:
        return F.cross_entropy(made(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return Candidate(made, loss)


def train(arguments: argparse.Namespace) -> None:
    """Steps beside retro-pytorch's, both with neighbours and without."""
    width = arguments.head_width
    builds: dict[str, Build] = {
        f"{name}, {told}": partial(build, LAYERS[layers], 2, width)
        for name, build in (("bakeoff", ours), ("retro-pytorch", theirs))
        for told, layers in (("k 2", 2), ("none", 0))
    }
    if width * HEADS != WIDTH:
        fewer = WIDTH // width
        builds[f"bakeoff, k 2, {fewer} heads"] = partial(ours, LAYERS[2], 2, width, fewer)
    timed = race(builds, training(BATCH, LENGTH, VOCABULARY), arguments.rounds, arguments.threads)
    table(f"training, heads of {width}", "parameters", "tokens/s", "time / ours, k 2", "peak MiB")
    for name, found in timed.items():
        of = ratio(found.seconds, timed["bakeoff, k 2"].seconds)
        rate = f"{BATCH * LENGTH / found.median:,.0f}"
        row(name, f"{found.parameters:,}", rate, f"{of:.2f}", f"{found.peak:.0f}")


def slowdown(arguments: argparse.Namespace) -> None:
    """Steps beside those of the same decoder that retrieves nothing."""
    cases = {"none": (0, 0)} | {f"{n} layers, k {k}": (n, k) for n in (1, 2, 4) for k in (1, 2, 4)}
    builds: dict[str, Build] = {
        name: partial(ours, LAYERS[n], k, arguments.head_width) for name, (n, k) in cases.items()
    }
    timed = race(builds, training(BATCH, LENGTH, VOCABULARY), arguments.rounds, arguments.threads)
    table("training", "parameters", "tokens/s", "time / base", "products / base", "peak MiB")
    work = {
        name: model(LAYERS[n], arguments.head_width).flops(LENGTH, LENGTH)
        for name, (n, k) in cases.items()
        if k in (0, 2)
    }
    for name, found in timed.items():
        rate = f"{BATCH * LENGTH / found.median:,.0f}"
        products = f"{work[name] / work['none']:.2f}" if name in work else "–"
        of = f"{ratio(found.seconds, timed['none'].seconds):.2f}"
        row(name, f"{found.parameters:,}", rate, of, products, f"{found.peak:.0f}")


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"training": train, "slowdown": slowdown}
    parser.add_argument("what", choices=commands)
    parser.add_argument("--head-width", type=int, default=32, help="channels of each of the 8 heads, everywhere")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, default=1, help="of each training candidate; wall time where there are several"
    )
    arguments = parser.parse_args()
    commands[arguments.what](arguments)


if __name__ == "__main__":
    main()
