"""`bakeoff cite RUN`: the papers behind a run's parts."""

from __future__ import annotations

import argparse
import json

from bakeoff.interfaces.command import Command


class Cite(Command):
    """Gather the references of all parts that a run, comparison or recipe uses."""

    help = "the papers behind a run's parts"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """A run folder, or a recipe or comparison file."""
        parser.add_argument("run", help="a run folder, a recipe or a comparison")
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print one line a reference."""
        from bakeoff.recipe import references

        found = references(arguments.run)
        if arguments.json:
            print(json.dumps({name: vars(reference) for name, reference in found.items()}, indent=2))
            return 0
        for name, reference in found.items():
            print(f"{name}: {reference}")
        return 0
