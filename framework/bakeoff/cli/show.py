"""`bakeoff show NAME`: what a component is, takes and claims."""

from __future__ import annotations

import argparse
import inspect
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


def claims(name: str, kind: str) -> list[str]:
    """Lines on what a part claims: always, and with some arguments; nothing of one that cannot be built alone."""
    from bakeoff.recipe.demands import specimens

    known = [part.capabilities for part in specimens(name, kind)]
    if not known:
        return []
    each, lost = [set(_claimed(one)) for one in known], frozenset[str]().union(*(one.lost_in_training for one in known))
    always, ever = set.intersection(*each), set.union(*each)
    order = [claim for claim in _claimed(None) if claim in ever]
    lines = [f"capabilities: {', '.join(claim for claim in order if claim in always)}"]
    if ever - always:
        lines.append(f"with some arguments: {', '.join(claim for claim in order if claim not in always)}")
    if lost:
        lines.append(f"not in training: {', '.join(claim for claim in order if claim in lost)}")
    return lines


def _claimed(capabilities: Any) -> list[str]:
    """The claims that are made; of None, all that there are."""
    from bakeoff.interfaces.component import CLAIMS

    return [name for name in CLAIMS if capabilities is None or getattr(capabilities, name)]


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
            print("\n" + "\n".join(claims(owner.name, owner.kind)))
        reference = getattr(cls, "reference", None)
        if reference is not None:
            print(f"\nreference: {reference}")
        return 0
