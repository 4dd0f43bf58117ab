"""`bakeoff show NAME`: what a component is, takes and claims."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields
from typing import Any

from bakeoff.interfaces.command import Command
from bakeoff.registry import entry, find


def signature(cls: type) -> list[str]:
    """One line an argument of the constructor: name, type, default."""
    lines = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in ("context", "self"):
            continue
        annotation = parameter.annotation if isinstance(parameter.annotation, str) else getattr(
            parameter.annotation, "__name__", str(parameter.annotation)
        )  # fmt: skip
        default = parameter.default
        shown = getattr(default, "__name__", repr(default))
        lines.append(f"{name}: {annotation}" + (" (required)" if default is parameter.empty else f" = {shown}"))
    return lines


def claims(capabilities: Any) -> list[str]:
    """The capabilities that a class claims; composed parts decide by what they are made of."""
    if isinstance(capabilities, property):
        return ["those of its parts"]
    return [f.name for f in fields(capabilities) if getattr(capabilities, f.name)]


class Show(Command):
    """Show a component's docstring, arguments, capabilities, paper, kind and package."""

    help = "one component: arguments, capabilities, paper"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The component's name."""
        parser.add_argument("name")

    def run(self, arguments: argparse.Namespace) -> int:
        """Import the one component and print it."""
        owner = entry(arguments.name)
        cls = find(arguments.name)
        print(f"{owner.name}  ({owner.kind}, {owner.package} {owner.version}, {owner.target})\n")
        print(inspect.getdoc(cls) or "")
        arguments_of = signature(cls)
        if arguments_of:
            print("\narguments")
            print("\n".join(f"  {line}" for line in arguments_of))
        if hasattr(cls, "capabilities"):
            print(f"\ncapabilities: {', '.join(claims(cls.capabilities))}")
        reference = getattr(cls, "reference", None)
        if reference is not None:
            print(f"\nreference: {reference}")
        return 0
