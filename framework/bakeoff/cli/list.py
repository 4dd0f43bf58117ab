"""`bakeoff list`: every component, without importing any."""

from __future__ import annotations

import argparse
from itertools import groupby

from bakeoff.errors import RegistryError
from bakeoff.interfaces.command import Command
from bakeoff.registry import KINDS, names


class List(Command):
    """List registered components with their kind and package; nothing is imported."""

    help = "components by kind and package"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """--kind narrows the list."""
        parser.add_argument("--kind", help=f"only this kind: {', '.join(KINDS)}")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the table."""
        if arguments.kind is not None and arguments.kind not in KINDS:
            raise RegistryError(f"'{arguments.kind}' is no kind of component; kinds: {', '.join(KINDS)}")
        entries = names(arguments.kind)
        width = max((len(entry.name) for entry in entries), default=0)
        owners: dict[str, set[str]] = {}
        for entry in entries:
            owners.setdefault(entry.name, set()).add(entry.package)
        for kind, group in groupby(entries, key=lambda entry: entry.kind):
            print(kind)
            for entry in group:
                clash = "  (clash: more than one owner)" if len(owners[entry.name]) > 1 else ""
                print(f"  {entry.name:<{width}}  {entry.package} {entry.version}{clash}")
        return 0
