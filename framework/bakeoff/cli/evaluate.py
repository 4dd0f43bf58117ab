"""`bakeoff evaluate RUN`: measure a trained model."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.interfaces.command import Command

if TYPE_CHECKING:
    from bakeoff.evaluate import Asked

#: Name of the file in the run's folder that holds the latest figures.
FILE = "evaluation.json"
#: Characters of a label that name its page: file systems take 255 bytes, and a character has up to four.
LONGEST = 56
#: What figures of --lengths are called.
BY_LENGTH = "loss_by_length"
PREFIX = f"{BY_LENGTH}."
#: Seconds between two lines on how far a task is.
PATIENCE = 5.0


class Evaluate(Command):
    """Measure a trained model, or try it at tasks.

    Prints the figures and keeps them in the run as evaluation.json; what a task shows becomes NAME.html beside it.
    """

    help = "measure a trained model"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The run, and which measures."""
        parser.add_argument("folder", metavar="RUN", help="folder of a run")
        parser.add_argument(
            "--measure",
            nargs="+",
            metavar="NAME",
            help="validation, throughput, decode, memory (default: all of these), or tasks (bakeoff list --kind task), "
            "with arguments as in '{use: mqar, pairs: 8}'",
        )
        parser.add_argument(
            "--lengths",
            nargs="+",
            metavar="LENGTH",
            help="the loss of the same tokens in rows of these lengths: tokens, or multiples of the training length, "
            "as in 1x 2x 4x 8x; nothing else is measured then, unless --measure names it",
        )
        parser.add_argument("--device", help="such as cpu or cuda (default: a GPU where there is one)")
        parser.add_argument("--trust", action="store_true", help="run the scripts that the run carries")

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure, print, and write."""
        from bakeoff import load_run
        from bakeoff.cli.generate import device_or_best
        from bakeoff.errors import CapabilityError
        from bakeoff.evaluate import Measured

        wanted = self._wanted(arguments)
        run = load_run(arguments.folder, trust=arguments.trust, device=device_or_best(arguments.device))
        measured = Measured.of(run.model, run.data, run.recipe)
        found: dict[str, float] = {}
        pages: dict[str, str] = {}
        named = arguments.measure or arguments.lengths
        for each in wanted:
            try:
                answer = each.answer(measured, Lines())
            except CapabilityError as refusal:
                if named:
                    raise
                print(f"{each.label} is left out: {refusal}", file=sys.stderr)
                continue
            found |= answer.figures
            pages |= {each.label: answer.html} if answer.html else {}
        for line in lines(found, measured.length):
            print(line)
        print(f"kept in {keep(Path(run.folder), found, str(measured.device))}")
        for label, html in pages.items():
            print(f"shown in {write_page(Path(run.folder), label, html)}")
        return 0

    def _wanted(self, arguments: argparse.Namespace) -> list[Asked]:
        """What is measured: what --measure names, and the lengths; everything where neither is given."""
        from bakeoff.evaluate import asked
        from bakeoff.evaluate.asking import one
        from bakeoff.recipe.reading import parse_value

        given, lengths = arguments.measure, arguments.lengths
        named = None if given is None else [parse_value(word, "--measure") for word in given]
        wanted = [] if named is None and lengths else asked(named)
        if lengths:
            wanted.append(replace(one({"use": BY_LENGTH, "lengths": lengths}), label=BY_LENGTH))
        return wanted


def lines(found: Mapping[str, float], trained: int) -> list[str]:
    """The figures one a line, those of lengths as a table; `trained` is the length that multiples are of."""
    of_lengths = {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}
    others = {name: value for name, value in found.items() if not name.startswith(PREFIX)}
    width = max(map(len, others), default=0)
    told = [
        f"{name:<{width}}  {value:,.6g}" if value < 1e6 else f"{name:<{width}}  {value:,.0f}"
        for name, value in others.items()
    ]
    return told + (table(of_lengths, trained) if of_lengths else [])


def table(figures: Mapping[str, float], trained: int) -> list[str]:
    """What `loss_by_length` says, a line a length."""
    named = {name: value for name, value in figures.items() if name != "tokens"}
    kinds = dict.fromkeys(name.rpartition("_")[0] for name in named)
    lengths = dict.fromkeys(name.rpartition("_")[2] for name in named)
    head = ["length", *(kind.replace("_", " ") for kind in kinds)]
    rows = [head, *([length, *(f"{named[f'{kind}_{length}']:.4f}" for kind in kinds)] for length in lengths)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    told = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [*told, f"over the same {figures['tokens']:,.0f} targets at each length; 1x is {trained} tokens in a row"]


class Lines:
    """Says on stderr what is measured, and every few seconds how far that is."""

    def __init__(self) -> None:
        self.shown: float | None = None

    def __call__(self, numbers: dict[str, Any]) -> None:
        from bakeoff.train.progress import describe

        now = time.monotonic()
        if self.shown is None:
            print(f"{numbers['phase']} …", file=sys.stderr, flush=True)
        elif now - self.shown < PATIENCE:
            return
        else:
            step = f"step {numbers['step']}/{numbers['total']}  " if "total" in numbers else ""
            print(f"  {step}{describe(numbers)}", file=sys.stderr, flush=True)
        self.shown = now


def keep(folder: Path, found: dict[str, float], device: str) -> Path:
    """Write the figures into the run's folder; those that it holds from before and that are not measured now stay."""
    import torch

    from bakeoff.parts.files import read_sealed, write_sealed

    path = folder / FILE
    before = read_sealed(path)["measures"] if path.exists() else {}
    about = {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}
    write_sealed(path, {**about, "measures": {**before, **found}})
    return path


def write_page(folder: Path, label: str, html: str) -> Path:
    """Write what a task shows as a page of its own; a long label is cut, and told apart by its hash."""
    from html import escape

    from bakeoff.compare.plan import digest, plain
    from bakeoff.parts.files import write_whole

    name = plain(label)
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}-{digest(label)}"
    path = folder / f"{name}.html"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(label)}: bakeoff</title>'
        "<style>body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif } "
        "th { text-align: left } th, td { padding: 0.1rem 1rem 0.1rem 0 } table { margin: 1rem 0 }</style>"
    )
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{html}</body></html>\n'
    write_whole(path, page.encode())
    return path
