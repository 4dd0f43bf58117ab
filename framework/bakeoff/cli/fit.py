"""`bakeoff fit RECIPE`: train."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bakeoff.errors import UserError
from bakeoff.interfaces.command import Command

if TYPE_CHECKING:
    from bakeoff.train.run import Run


class Fit(Command):
    """Train a recipe, or continue a run exactly where it stopped."""

    help = "train a recipe"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""
        parser.add_argument("recipe", nargs="?", help="YAML file, or bakeoff:models/NAME.yaml for one that is shipped")
        parser.add_argument("overrides", nargs="*", metavar="path=value", help="for example model.depth=12")
        parser.add_argument("--print", action="store_true", help="print the resolved recipe with sources, and stop")
        parser.add_argument("--folder", type=Path, help="folder of the run (default: runs/<recipe>/<time>-<hash>)")
        parser.add_argument("--resume", type=Path, metavar="FOLDER", help="continue the run in this folder")
        parser.add_argument("--trust", action="store_true", help="with --resume: run the scripts that the run carries")

    def run(self, arguments: argparse.Namespace) -> int:
        """Train; returns the exit code."""
        if arguments.print:
            from bakeoff.recipe import recipe

            source, overrides, _ = _what(arguments)
            recipe(source, overrides).print()
            return 0
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else a lost connection is a page of stack frames
        from bakeoff.train.failures import Interrupted
        from bakeoff.train.job import launched_job
        from bakeoff.train.launch import COMMAND

        os.environ[COMMAND] = "1"
        job = launched_job()
        try:
            if job is None:
                run = _fit(arguments)
            else:
                job.meet()
                with job.watched():
                    run = _fit(arguments)
        except Interrupted as stop:
            print(f"bakeoff: {stop}", file=sys.stderr)
            return stop.code
        if job is None or job.member.rank == 0:
            print(run.folder)
        return 0


def _fit(arguments: argparse.Namespace) -> Run:
    from bakeoff.recipe import recipe
    from bakeoff.train.fitting import fit

    source, overrides, folder = _what(arguments)
    made = recipe(source, overrides)
    made.check()
    return fit(made, folder=folder)


def _what(arguments: argparse.Namespace) -> tuple[str | Path, list[str], Path | None]:
    """Recipe, overrides and folder that the command line names."""
    words = [word for word in (arguments.recipe, *arguments.overrides) if word is not None]
    resume = arguments.resume
    if resume is None:
        if not words or "=" in words[0]:
            raise UserError("which recipe? bakeoff fit RECIPE [path=value …], or bakeoff fit --resume FOLDER")
        return words[0], words[1:], arguments.folder
    if arguments.folder is not None:
        raise UserError("--resume names the folder already; leave --folder out")
    if words and "=" not in words[0]:
        return words[0], words[1:], resume
    from bakeoff.train.folder import RunFolder
    from bakeoff.train.run import refuse_untrusted

    place = RunFolder(resume)
    if not arguments.trust:
        refuse_untrusted(place)
    return place.recipe, words, resume
