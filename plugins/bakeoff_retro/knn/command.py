"""`bakeoff datastore RUN --folder F`: what a trained model's states are before each token of its training text."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bakeoff.interfaces import Command

#: Seconds between two lines.
PATIENCE = 5.0


class DatastoreCommand(Command):
    """Write the datastore of a trained run for the head `knn_lm`; the same command goes on where it was killed, and
    with `--search` adds an index to a datastore that is finished."""

    help = "a trained run's hidden states and the tokens that came after them, for head knn_lm"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which run, where to, and how much of its text."""
        parser.add_argument("run", help="the folder of a trained run")
        parser.add_argument("--folder", type=Path, required=True, help="the datastore that is made")
        parser.add_argument("--tokens", type=int, help="about so many, spread over the train split (default: all)")
        parser.add_argument("--type", choices=["float16", "float32"], default="float16", help="of the keys")
        parser.add_argument(
            "--search", choices=["flat", "hnsw", "ivf_pq"], default="flat", help="the index over the keys"
        )
        parser.add_argument("--device", help="where the model runs (default: a GPU if there is one)")
        parser.add_argument("--trust", action="store_true", help="run the scripts that the run carries")

    def run(self, arguments: argparse.Namespace) -> int:
        """Write it, and print where it is."""
        import torch
        from bakeoff import load_run
        from bakeoff.parts.files import expanded

        from bakeoff_retro.knn.building import Source, build, opened
        from bakeoff_retro.knn.indexes import write_index

        device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
        run = load_run(arguments.run, trust=arguments.trust, device=device)
        folder = expanded(arguments.folder)
        if folder.exists() and arguments.search != "flat":
            made = opened(folder, run)
        else:
            source = Source(run, tokens=arguments.tokens)
            made = build(source, folder, kind=arguments.type, tell=Lines(source.targets))
        if arguments.search != "flat":
            print(f"building {arguments.search} over {made.entries:,} keys …", file=sys.stderr, flush=True)
            write_index(made, arguments.search)
        print(f"{made.folder}: {made.entries:,} entries of {made.width} numbers")
        return 0


class Lines:
    """Says on stderr every few seconds how many of about `total` entries there are, and how long the rest takes."""

    def __init__(self, total: int):
        self.total, self.first = total, 0
        self.began = self.shown = time.monotonic()

    def __call__(self, entries: int) -> None:
        now = time.monotonic()
        self.first = self.first or entries
        if now - self.shown < PATIENCE:
            return
        self.shown = now
        speed = (entries - self.first) / (now - self.began)
        left = f", about {max(0, self.total - entries) / speed:,.0f} s left" if speed else ""
        print(f"{entries:,} of about {self.total:,} entries, {speed:,.0f} a second{left}", file=sys.stderr, flush=True)
