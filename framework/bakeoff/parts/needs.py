"""Collecting what the parts of a model need from a sequence."""

from __future__ import annotations

from torch import nn

from bakeoff.interfaces.part import Part
from bakeoff.interfaces.sequence import Need


def gather(module: nn.Module) -> tuple[Need, ...]:
    """The needs of all parts inside `module`, each once, in order of first mention."""
    return tuple(dict.fromkeys(need for part in module.modules() if isinstance(part, Part) for need in part.needs()))
