"""`bakeoff compare FILE`: train the arms of a comparison side by side and report."""

from __future__ import annotations

import argparse
from pathlib import Path

from bakeoff.interfaces.command import Command


class Compare(Command):
    """Train the arms of a comparison on paired seeds; killed at any moment, the same command continues."""

    help = "train alternatives side by side and say which is better"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The comparison, overrides, folder."""
        parser.add_argument("comparison", help="YAML file, or bakeoff:NAME.yaml for one that is shipped")
        parser.add_argument("overrides", nargs="*", metavar="path=value", help="for example budget.tokens=1e6")
        parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
        parser.add_argument("--folder", type=Path, help="default: runs/<name>/<hash of the comparison>")
        parser.add_argument("--retry", action="store_true", help="run failed trials again")

    def run(self, arguments: argparse.Namespace) -> int:
        """Compare; 1 if a trial failed or an arm was refused."""
        from bakeoff.compare.runner import compare

        done = compare(
            arguments.comparison,
            arguments.overrides,
            folder=arguments.folder,
            dry_run=arguments.dry_run,
            retry=arguments.retry,
        )
        return 0 if arguments.dry_run or done.complete else 1
