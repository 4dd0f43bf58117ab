"""What a datastore of a model's own states is worth on text that the model has not seen, with intervals.

    python -m benchmarks.knn_gain recipes/retrieval/plain.yaml --seeds 0 1 2 --entries 1000000 --folder FOLDER

For each seed the recipe is trained, a datastore is made of its train split, and the same held-out rows are read with
and without it, and with its values shuffled. The weight of the datastore is chosen on the documents of even number, and
all that is printed is of the others. A folder that holds finished runs and datastores is gone on with.
"""

from __future__ import annotations

import argparse
import math
import shutil
from pathlib import Path
from typing import Any

import bakeoff
import numpy as np
import torch
from bakeoff.interfaces import LayerContext
from bakeoff.parts.resampling import Ratio, ratio
from bakeoff_retro.knn.building import Source, build
from bakeoff_retro.knn.datastore import IDS, VALUES
from bakeoff_retro.knn.head import KNNLM

WEIGHTS = np.arange(0.1, 0.95, 0.1)
#: The weight with which the datastore is asked; from it the shares of both are told apart again.
ASKED = 0.9


def shuffled(folder: Path, seed: int) -> Path:
    """The datastore with its values in another order."""
    copy = folder.with_name(f"{folder.name}-shuffled")
    if not copy.exists():
        shutil.copytree(folder, copy)
        values = np.fromfile(folder / VALUES, IDS)
        np.random.default_rng(seed).shuffle(values)
        values.tofile(copy / VALUES)
    return copy


def nats(run: Any, batch: dict[str, Any], folder: Path | None, k: int) -> torch.Tensor:
    """Of each target of a batch, in double precision, under the model's head or one that asks a datastore."""
    model = run.model
    inner = model.head
    if folder is not None:
        context: LayerContext = model.context
        model.head = KNNLM(context, head=lambda _: inner, datastore=str(folder), k=k, weight=ASKED).eval()
    try:
        with torch.no_grad():
            losses = run.recipe.build("objective").token_losses(model, batch)
    finally:
        model.head = inner
    return losses.nats[losses.weights > 0].double()


def costs(run: Any, stores: list[Path | None], k: int, tokens: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Nats of each target under each datastore (None: under none), and its bytes and document."""
    table = torch.as_tensor(run.data.bytes_per_token)
    found: list[list[np.ndarray]] = [[] for _ in stores]
    sizes, documents = [], []
    objective = run.recipe.build("objective")
    for number, batch in enumerate(run.data.reading(objective).validation(tokens=tokens)):
        weights = objective.token_losses(run.model, batch)
        kept = weights.weights > 0
        sizes.append(table[weights.targets[kept]].numpy())
        held = batch["documents"]
        each = torch.full_like(batch["tokens"], number) if held is None else held
        documents.append(each[:, 1:][kept].numpy())
        for place, store in enumerate(stores):
            found[place].append(nats(run, batch, store, k).numpy())
    return [np.concatenate(part) for part in found], np.concatenate(sizes), np.concatenate(documents)


def mixed(plain: np.ndarray, asked: np.ndarray, weight: float) -> np.ndarray:
    """Nats under another weight than `ASKED`."""
    ours = np.exp(-plain)
    theirs = np.maximum(np.exp(-asked) - (1 - ASKED) * ours, 0.0) / ASKED
    return -np.log(weight * theirs + (1 - weight) * ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=16384, help="that are held out and read")
    parser.add_argument("-k", type=int, default=64)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    print("| seed | weight | without | with | gain (95 % of documents drawn) | with shuffled values |")
    print("|---:|---:|---:|---:|---:|---:|")
    for seed in arguments.seeds:
        place = arguments.folder / f"run-{seed}"
        finished = (place / "summary.json").exists()
        run = (
            bakeoff.load_run(place) if finished else bakeoff.recipe(arguments.recipe, {"seed": seed}).fit(folder=place)
        )
        store = arguments.folder / f"store-{seed}"
        if not store.exists():
            build(Source(run, tokens=arguments.entries), store, kind="float16", tell=lambda entries: None)
        stores = [None, store, shuffled(store, seed)]
        (plain, asked, other), sizes, documents = costs(run, stores, arguments.k, arguments.tokens)
        choosing = documents % 2 == 0
        bits = [mixed(plain[choosing], asked[choosing], w).sum() for w in WEIGHTS]
        weight = float(WEIGHTS[int(np.argmin(bits))])
        rest = ~choosing
        told = [plain[rest], mixed(plain[rest], asked[rest], weight), mixed(plain[rest], other[rest], weight)]
        per = [part.sum() / math.log(2) / sizes[rest].sum() for part in told]
        gains = [gain(told[0] - part, sizes[rest], documents[rest], seed) for part in told[1:]]
        shown = " | ".join(f"{one.value:+.4f} ({one.low:.4f} to {one.high:.4f})" for one in gains)
        print(f"| {seed} | {weight:.1f} | {per[0]:.4f} | {per[1]:.4f} | {shown} |", flush=True)


def gain(saved: np.ndarray, sizes: np.ndarray, documents: np.ndarray, seed: int) -> Ratio:
    """Bits per byte that were saved, by resampling documents."""
    each = np.unique(documents, return_inverse=True)[1]
    return ratio(np.bincount(each, saved) / math.log(2), np.bincount(each, sizes), seed=seed)


if __name__ == "__main__":
    main()
