"""One component with one set of arguments, as the laws see it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.init import initialise
from bakeoff.testing.build import built, context
from bakeoff.testing.host import host
from bakeoff.testing.rereading import of_backbone
from bakeoff.testing.subject import Subject
from bakeoff.testing.values import jitter


class Candidate:
    """A component that is built anew as often as a law wants.

    Attributes
    ----------
    make : the class, or a factory, that is called with the arguments (and before them, for parts, a context).
    arguments : as they would stand in a recipe.
    device : where parts are called along a sequence; what goes in and comes out stands on the CPU.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        kind: str,
        arguments: Mapping[str, Any],
        seed: int = 0,
        device: torch.device | str = "cpu",
    ):
        self.make, self.kind, self.arguments, self.seed = make, kind, arguments, seed
        self.device = torch.device(device)

    def missing(self) -> list[str]:
        """Required arguments of a class that are not given."""
        if not isinstance(self.make, type):
            return []
        known = inspect.signature(self.make).parameters.values()
        required = [p.name for p in known if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
        return [name for name in required if name not in self.arguments]

    def build(self, place: LayerContext | None = None) -> Any:
        """A new one, its parameters not filled."""
        return built(self.make, self.arguments, place or context(self.kind))

    def filled(self, build: Callable[[LayerContext], Any] | None = None, *, jittered: bool = True) -> Beside:
        """A new one (or what hosts it), initialised, beside what it shares with other layers.

        `jittered` moves every value a little, so that zeros hide nothing.
        """
        place = context(self.kind)
        part = (build or self.build)(place)
        beside = Beside(part, {} if isinstance(part, Backbone) else place.parts)
        initialise(beside, seed=self.seed, depth=place.depth)
        if jittered:
            jitter(beside, self.seed)
        return beside.eval()

    def generator(self) -> torch.Generator:
        """A fresh generator with the candidate's seed."""
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def subject(self) -> Subject:
        """The component, or the smallest part that calls it, as a map of batches."""
        beside = self.filled(host(self.kind, self.build)).to(self.device)
        kind: Callable[..., Subject] = of_backbone if isinstance(beside.part, Backbone) else Subject
        return kind(beside, beside.part, context(), seed=self.seed)


class Ready(Candidate):
    """A part that stands already, such as a layer of a model; `arguments` say where."""

    def __init__(self, subject: Subject, where: Mapping[str, Any]):
        super().__init__(type(subject.module), subject.module.kind, where, subject.seed)
        self.__dict__["subject"] = subject

    def missing(self) -> list[str]:
        """Nothing: it is built."""
        return []


class Beside(nn.Module):
    """A part outside a model, and what it shares with other layers."""

    def __init__(self, part: nn.Module, shared: Mapping[str, nn.Module]):
        super().__init__()
        self.part = part
        self.shared = nn.ModuleDict(shared)
