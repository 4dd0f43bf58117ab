"""`bakeoff evaluate RUN`: measure a trained model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bakeoff.interfaces.command import Command

#: Name of the file in the run's folder that holds the latest figures.
FILE = "evaluation.json"


class Evaluate(Command):
    """Measure a trained model; prints the figures and keeps them in the run as evaluation.json."""

    help = "measure a trained model"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The run, and which measures."""
        parser.add_argument("folder", metavar="RUN", help="folder of a run")
        parser.add_argument(
            "--measure", nargs="+", metavar="NAME", help="validation, throughput, decode, memory (default: all)"
        )
        parser.add_argument("--device", help="such as cpu or cuda (default: a GPU where there is one)")
        parser.add_argument("--trust", action="store_true", help="run the scripts that the run carries")

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure, print, and write."""
        from bakeoff import load_run
        from bakeoff.cli.generate import device_or_best
        from bakeoff.evaluate import Measured, known_measures, measure

        names = known_measures(arguments.measure)
        run = load_run(arguments.folder, trust=arguments.trust, device=device_or_best(arguments.device))
        measured = Measured.of(run.model, run.data, run.recipe)
        found: dict[str, float] = {}
        for name in names:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            found |= measure(measured, [name])
        width = max(len(name) for name in found)
        for name, value in found.items():
            print(f"{name:<{width}}  {value:,.6g}" if value < 1e6 else f"{name:<{width}}  {value:,.0f}")
        print(f"kept in {keep(Path(run.folder), found, str(measured.device))}")
        return 0


def keep(folder: Path, found: dict[str, float], device: str) -> Path:
    """Write the figures into the run's folder; those that it holds from before and that are not measured now stay."""
    import torch

    from bakeoff.parts.files import read_sealed, write_sealed

    path = folder / FILE
    before = read_sealed(path)["measures"] if path.exists() else {}
    about = {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}
    write_sealed(path, {**about, "measures": {**before, **found}})
    return path
