"""What components cost at a small size: parameters, FLOPs a token, bytes of a state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import kinds
import torch
from bakeoff.compare.words import count, size
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Part, StatefulPart
from bakeoff.interfaces.state import nbytes
from bakeoff.registry import Entry, find
from bakeoff.testing.build import built
from bakeoff.testing.report import written

#: The stated size.
D_MODEL, HEADS, LENGTH, VOCABULARY = 256, 4, 256, 4096


class Cost(NamedTuple):
    """None: the part declares no such figure."""

    parameters: int
    flops: float | None
    state: int | None


def section(registered: list[Entry]) -> Iterator[str]:
    """The table of costs, for kinds whose components have parameters or declare their work."""
    parts = {entry.name: specimen(find(entry.name)) for entry in registered if issubclass(find(entry.name), Part)}
    known = {name: cost(part) for name, part in parts.items() if part is not None}
    if not any(one.parameters or one.flops for one in known.values()):
        return
    yield "## Cost"
    yield (
        f"At `d_model` {D_MODEL}, {HEADS} heads, {LENGTH} tokens, a vocabulary of {VOCABULARY:,}, float32. "
        "Arguments are the defaults; where one has none, that of the first of the class's `examples()`. "
        f"FLOPs are forward operations a token, averaged over the {LENGTH}; the state is one row's after "
        f"{LENGTH} tokens. `bakeoff plan` gives the same figures for a recipe."
    )
    titles: dict[str, Callable[[Cost], str]] = {
        "parameters": lambda one: f"{one.parameters:,}",
        "FLOPs/token": lambda one: "–" if one.flops is None else count(one.flops),
        "state": lambda one: "–" if one.state is None else size(one.state),
    }
    values = {name: [show(one) for show in titles.values()] for name, one in known.items()}
    shown = [i for i in range(len(titles)) if any(row[i] != "–" for row in values.values())]
    rows = [(f"`{name}`", arguments(find(name)), *(row[i] for i in shown)) for name, row in values.items()]
    yield kinds.table(["", "with", *(list(titles)[i] for i in shown)], rows, numbers=len(shown))


def required(cls: type) -> dict[str, Any]:
    """Arguments without a default, from the first example."""
    example = next(iter(cls.examples()), {})  # type: ignore[attr-defined]
    needed = [p.name for p in inspect.signature(cls).parameters.values() if p.default is p.empty]
    return {name: value for name, value in example.items() if name in needed}


def arguments(cls: type) -> str:
    """The required arguments as a recipe writes them."""
    return ", ".join(f"`{name}: {written(value)}`" for name, value in required(cls).items())


def specimen(cls: type) -> Part | None:
    """One of the stated size, on the meta device; None if it cannot be built without more being said."""
    place = LayerContext(
        d_model=D_MODEL, vocab_size=VOCABULARY, max_length=LENGTH, depth=2, n_heads=HEADS, n_kv_heads=HEADS,
        head_width=D_MODEL // HEADS, n_experts=8,
    )  # fmt: skip
    try:
        with torch.device("meta"):
            return built(cls, required(cls), place)
    except (UserError, TypeError):
        return None


def cost(part: Part) -> Cost:
    """What a part costs."""
    flops = _known(lambda: part.flops(LENGTH, LENGTH) / LENGTH)
    state = None
    if isinstance(part, StatefulPart):
        with torch.no_grad():
            state = _known(lambda: nbytes(part.empty_state(1, LENGTH, torch.float32, "meta")))
    return Cost(sum(parameter.numel() for parameter in part.parameters()), flops, state)


def _known(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except UserError:
        return None
