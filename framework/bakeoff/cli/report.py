"""`bakeoff report FOLDER`: write a comparison's report again from its stored trials."""

from __future__ import annotations

import argparse
from pathlib import Path

from bakeoff.interfaces.command import Command


class Report(Command):
    """Print a comparison's table and write report.html, report.md and results.csv from what its folder holds."""

    help = "write a comparison's report again"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The comparison's folder."""
        parser.add_argument("folder", type=Path, help="as printed by bakeoff compare: runs/<name>/<hash>")

    def run(self, arguments: argparse.Namespace) -> int:
        """Write and print."""
        from rich.console import Console

        from bakeoff.compare import report, table
        from bakeoff.compare.results import Results
        from bakeoff.compare.store import Store

        store = Store.open(arguments.folder)
        try:
            results = Results.of(store)
        finally:
            store.close()
        page = report.write(results, arguments.folder)
        table.show(results, Console())
        print(f"Report: {page}")
        return 0
