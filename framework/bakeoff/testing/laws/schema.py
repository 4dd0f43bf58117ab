"""What a class tells before it is built: constructor arguments that a recipe can name, a source, examples."""

from __future__ import annotations

import inspect

from bakeoff.interfaces.component import Component, Reference
from bakeoff.registry import KINDS
from bakeoff.testing.build import takes_context
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, NotApplicable, law


@law(None, "schema", *KINDS)
def schema(candidate: Candidate) -> None:
    """Arguments are keyword-only and typed, none is swallowed, and examples name those that are there."""
    cls = candidate.make
    if not isinstance(cls, type):
        raise NotApplicable("a factory has no schema")
    if not issubclass(cls, Component):
        raise Broken(f"{cls.__name__} is no bakeoff.interfaces.Component")
    if cls.reference is not None and not isinstance(cls.reference, Reference):
        raise Broken("`reference` is no bakeoff.interfaces.Reference")
    given = list(inspect.signature(cls).parameters.values())[1 if takes_context(cls) else 0 :]
    for parameter in given:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            swallows = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            slip = "swallows what is not known" if swallows else "is not keyword-only"
            raise Broken(f"argument '{parameter.name}' {slip}")
        if parameter.annotation is parameter.empty:
            raise Broken(f"argument '{parameter.name}' has no type, so a recipe cannot be checked against it")
    unknown = set(candidate.arguments) - {parameter.name for parameter in given}
    if unknown:
        raise Broken(f"examples() names arguments that the constructor has not: {', '.join(sorted(unknown))}")
