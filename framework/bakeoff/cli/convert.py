"""`bakeoff convert SOURCE --folder F`: published weights <-> a run, and a run -> a run of another shape."""

from __future__ import annotations

import argparse
from pathlib import Path

from bakeoff.errors import UserError
from bakeoff.interfaces.command import Command


class Convert(Command):
    """Make a run of published weights or of another run (with --recipe), or write a run's under the published names."""

    help = "published weights, or a run, into a run; or a run's weights into the published layout"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Where from, where to, and for published weights by which recipe."""
        parser.add_argument(
            "source", help="a safetensors file or a folder of them (with --recipe), a run, or a step-N.ckpt folder"
        )
        parser.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="values of the recipe set by path")
        parser.add_argument("--folder", type=Path, required=True, help="the run, or the weights, that are made")
        parser.add_argument("--recipe", help="of the run that is made: a recipe with a converter")
        parser.add_argument("--own-names", action="store_true", help="write a run's weights under its own names")
        parser.add_argument("--trust", action="store_true", help="run the scripts that the run carries")

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert, and print what was made."""
        from bakeoff import load_run, recipe
        from bakeoff.parallel.checkpoints import is_checkpoint, to_safetensors
        from bakeoff.train import export_weights, import_weights
        from bakeoff.train.published import FILE

        if arguments.recipe is not None:
            if arguments.own_names:
                raise UserError("--own-names is of a run that is written; with --recipe a run is made")
            made = recipe(arguments.recipe, arguments.overrides)
            print(import_weights(made, arguments.source, arguments.folder, trust=arguments.trust).folder)
            return 0
        if arguments.overrides:
            raise UserError(f"{arguments.overrides[0]}: a run has its recipe; values are set with --recipe only")
        source = Path(arguments.source)
        if is_checkpoint(source):
            path = arguments.folder / FILE
            to_safetensors(source, path)
        else:
            run = load_run(source, trust=arguments.trust)
            path = export_weights(run, arguments.folder, own_names=arguments.own_names)
        print(path)
        return 0
