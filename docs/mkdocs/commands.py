"""The page of the command line: what each command says of itself."""

from __future__ import annotations

import argparse
import os
from unittest import mock

from bakeoff.cli.main import parser

_INTRODUCTION = """# Commands

What `bakeoff COMMAND --help` prints. `path=value` arguments change a recipe and may stand anywhere. What a user can
mend is told in one message, with exit code 2.
"""


def page() -> str:
    """One section a command."""
    with mock.patch.dict(os.environ, {"COLUMNS": "100"}):
        top = parser()
        parts = [_INTRODUCTION, _block(top.format_help())]
        for name, command in _subcommands(top).items():
            parts += [f"## {name}", _block(command.format_help())]
    return "\n\n".join(parts)


def _subcommands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (action,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    return action.choices


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"
