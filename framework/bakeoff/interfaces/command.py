"""Kind `command`: a subcommand of `bakeoff`."""

from __future__ import annotations

import argparse
from abc import abstractmethod
from typing import ClassVar

from bakeoff.interfaces.component import Component


class Command(Component):
    """One subcommand. Its module must stay light: import torch inside `run`."""

    kind = "command"
    help: ClassVar[str]
    """One line for `bakeoff --help`."""

    @abstractmethod
    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    @abstractmethod
    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; returns the exit code. A `UserError` becomes one message and exit code 2."""
