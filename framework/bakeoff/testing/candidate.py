"""One component with one set of arguments, as the laws see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from torch import nn

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.init import initialise
from bakeoff.testing.build import built, context
from bakeoff.testing.subject import BackboneSubject, Subject, jitter


class Candidate:
    """A component that is built anew as often as a law wants.

    Attributes
    ----------
    make : the class, or a factory, that is called with the arguments (and before them, for parts, a context).
    arguments : as they would stand in a recipe.
    """

    def __init__(self, make: Callable[..., Any], kind: str, arguments: Mapping[str, Any], seed: int = 0):
        self.make, self.kind, self.arguments, self.seed = make, kind, arguments, seed

    def build(self, place: LayerContext | None = None) -> Any:
        """A new one, its parameters not filled."""
        return built(self.make, self.arguments, place)

    def filled(self, place: LayerContext | None = None, *, jittered: bool = True) -> tuple[nn.Module, Any]:
        """A new one, initialised, inside a module that also holds what it shares with other layers; and itself.

        `jittered` moves every value a little, so that zeros hide nothing.
        """
        place = place or context()
        part = self.build(place)
        root = Beside(part, place.parts) if place.parts and not isinstance(part, Backbone) else part
        initialise(root, seed=self.seed, depth=place.depth)
        if jittered:
            jitter(root, self.seed)
        return root.eval(), part

    @cached_property
    def subject(self) -> Subject:
        """The component as a map of batches; for kinds that are one."""
        place = context()
        root, part = self.filled(place)
        return (BackboneSubject if isinstance(part, Backbone) else Subject)(root, part, place, seed=self.seed)


class Ready(Candidate):
    """A part that stands already, such as a layer of a model; `arguments` say where."""

    def __init__(self, subject: Subject, where: Mapping[str, Any]):
        super().__init__(type(subject.module), subject.module.kind, where, subject.seed)
        self.__dict__["subject"] = subject


class Beside(nn.Module):
    """A part outside a model, and what it shares with other layers."""

    def __init__(self, part: nn.Module, shared: Mapping[str, nn.Module]):
        super().__init__()
        self.part = part
        self.shared = nn.ModuleDict(shared)
