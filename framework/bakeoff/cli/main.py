"""The `bakeoff` command: finds its subcommands, turns user errors into one message and exit code 2."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence as Items
from typing import Any, cast

from bakeoff.errors import RegistryError, UserError
from bakeoff.interfaces.command import Command
from bakeoff.registry import find, names

#: Order in `--help`; commands of plugins follow.
ORDER = (
    "fit", "launch", "compare", "report", "check", "plan", "generate", "evaluate", "index", "convert", "list", "show",
    "new", "cite", "doctor",
)  # fmt: skip

#: Where a parsed command line holds what to call; no argument of a command can bear this name.
RUN = "what to run"


def commands() -> dict[str, type[Command]]:
    """All subcommands by name; one that cannot be loaded is named in a warning and left out."""
    found: dict[str, type[Command]] = {}
    for entry in names("command"):
        try:
            found[entry.name] = cast(type[Command], find(entry.name, "command"))
        except RegistryError as error:
            warnings.warn(str(error), stacklevel=2)
    return dict(sorted(found.items(), key=lambda item: (ORDER.index(item[0]) if item[0] in ORDER else 99, item[0])))


def parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """The parser of one subcommand, or of all for `--help`."""
    from bakeoff import __version__

    top = argparse.ArgumentParser(prog="bakeoff", description="Compose, train and honestly compare LM architectures.")
    top.add_argument("--version", action="version", version=f"bakeoff {__version__}")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if wanted is not None and wanted in {entry.name for entry in names("command")}:
        offered = {wanted: cast(type[Command], find(wanted, "command"))}
    else:
        offered = commands()
    for name, cls in offered.items():
        one = sub.add_parser(name, help=cls.help, description=cls.__doc__ or cls.help)
        command = cls()
        command.arguments(one)
        one.set_defaults(**{RUN: command.run})
    return top


def parse(words: list[str]) -> argparse.Namespace:
    """The arguments of one command line; `path=value` may stand anywhere, after options too."""
    known = parser(words[0] if words else None)
    arguments, rest = known.parse_known_args(words)
    loose = [word for word in rest if "=" in word and not word.startswith("-")]
    if loose != rest or (rest and not hasattr(arguments, "overrides")):
        known.error(f"unrecognized arguments: {' '.join(word for word in rest if word not in loose) or ' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def main(argv: Items[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    warnings.showwarning = _warn  # type: ignore[assignment]
    try:
        arguments = parse(words)
        return int(getattr(arguments, RUN)(arguments))
    except UserError as error:
        if not error.told:
            print(f"bakeoff: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("bakeoff: interrupted", file=sys.stderr)
        return 130


def _warn(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    print(f"bakeoff: warning: {message}", file=sys.stderr)


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())
