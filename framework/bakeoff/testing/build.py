"""Components of the kit's size, from the arguments that a class gives as its `examples`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.part import Part
from bakeoff.recipe.checker import Checker
from bakeoff.recipe.factory import make
from bakeoff.recipe.signature import signature_of
from bakeoff.recipe.slips import lines, report
from bakeoff.registry import find

#: Where parts are built: small enough to be quick, with room for every head count that is a power of two.
D_MODEL = 16
VOCABULARY = 64
MAX_LENGTH = 288
#: Heads and window of the attention that positions and attention ops are tested in.
HEADS = 4
WINDOW = 8
#: Experts of the mixture that routers are tested in.
EXPERTS = 4


def context(kind: str | None = None) -> LayerContext:
    """The context that parts are built in; with a window for an attention op, as one mixer or another has."""
    return LayerContext(
        d_model=D_MODEL,
        vocab_size=VOCABULARY,
        max_length=MAX_LENGTH,
        depth=2,
        n_heads=HEADS,
        n_kv_heads=HEADS,
        head_width=D_MODEL // HEADS,
        n_experts=EXPERTS,
        window=WINDOW if kind == "attention_op" else None,
    )


def embeds(build: Callable[[LayerContext], Any]) -> bool:
    """Whether a positional encoding acts on embeddings."""
    return "embed" in build(context()).hooks


def built(cls: Callable[..., Any], arguments: Mapping[str, Any], place: LayerContext | None = None) -> Any:
    """The component with these arguments: a part in `place` (default: the kit's), anything else by itself."""
    if takes_context(cls):
        return cls(place or context(), **{name: resolved(value) for name, value in arguments.items()})
    if not isinstance(cls, type):
        return cls(**{name: resolved(value) for name, value in arguments.items()})
    checker = Checker()
    checked = checker.arguments(arguments, signature_of(cls), "", cls.__name__)
    report(lines(checker.slips, {}, checker.valid), cls.__name__)
    return cls(**{name: make(value, name, checker.makers) for name, value in checked.items()})


def resolved(value: Any) -> Any:
    """The value of an argument: `{use: NAME, …}` becomes a factory of that component, at every depth."""
    if isinstance(value, Mapping):
        if "use" not in value:
            return {key: resolved(inner) for key, inner in value.items()}
        cls = find(value["use"])
        inner = {key: argument for key, argument in value.items() if key != "use"}
        if takes_context(cls):
            return lambda place: built(cls, inner, place)
        return built(cls, inner)
    if isinstance(value, list):
        return [resolved(inner) for inner in value]
    return value


def takes_context(cls: Callable[..., Any]) -> bool:
    """Whether a class, or a factory, is called with a `LayerContext`."""
    if isinstance(cls, type):
        return issubclass(cls, Part)
    first = next(iter(inspect.signature(cls).parameters.values()), None)
    return first is not None and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
