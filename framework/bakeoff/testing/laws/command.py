"""Commands: a line of help, and arguments that a parser accepts."""

from __future__ import annotations

import argparse

from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law


@law(None, "arguments", "command")
def arguments(candidate: Candidate) -> None:
    """`help` is one line; `arguments` declares what the command takes, in a form that can be shown."""
    command = candidate.build()
    if not command.help or "\n" in command.help:
        raise Broken("`help` is not one line")
    parser = argparse.ArgumentParser(prog="bakeoff")
    command.arguments(parser)
    parser.format_help()
