"""A recipe's model made small, its mixers kept: what a task trains where the mixers alone are to be seen."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from bakeoff.errors import UserError
from bakeoff.recipe import Recipe
from bakeoff.registry import find, names


def small(recipe: Recipe, *, d_model: int, depth: int) -> Recipe:
    """The recipe with a narrow, shallow model of its own mixers.

    The pattern's cycle once, or as often as `depth` layers take; blocks without a mixer are left out of it, and the
    others lose their feed-forward. Where a mixer takes a `position`, it gets none, and the embeddings get learned
    ones; where none does, there are no positions. All else, such as heads, windows and sizes of states, is the
    recipe's, and all of it is trained. Raises `UserError` where no block has a mixer.
    """
    tree = recipe.tree["model"]
    blocks: Mapping[str, Any] = tree.get("blocks", {})
    mixing = {name: block for name, block in blocks.items() if block.get("mixer", ...) is not None}
    pattern = _cycle(tree.get("pattern", []), mixing)
    if blocks and not pattern:
        raise UserError("no block of the model has a mixer, so there is none to be tried")
    changes: dict[str, Any] = dict.fromkeys(("trained", "adapters", "model.vocab_size", "model.max_length"))
    changes["model.d_model"] = d_model
    if pattern:
        changes |= {"model.pattern": pattern, "model.depth": max(depth, len(pattern))}
    for name, block in mixing.items():
        if "feed_forward" in block:
            changes[f"model.blocks.{name}.feed_forward"] = None
    found = dict(_positions({"blocks": mixing}, "model"))
    changes |= dict.fromkeys((path for path, given in found.items() if given), None)
    if blocks:
        changes["model.position"] = {"use": "learned_position"} if found else None
    return recipe.override(changes)


def _cycle(pattern: Any, mixing: Mapping[str, Any]) -> list[str]:
    """The names of a pattern once through, those of blocks with a mixer."""
    names = [*pattern.get("first", []), *pattern["repeat"]] if isinstance(pattern, Mapping) else pattern
    return [name for name in names if name in mixing]


def _positions(node: Any, path: str) -> Iterator[tuple[str, bool]]:
    """The paths of all arguments that take a positional encoding in mixers, and whether one is given."""
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        yield from _positions(value, f"{path}.{key}")
    name = node.get("use")
    if name in {entry.name for entry in names("mixer")} and "position" in inspect.signature(find(name)).parameters:
        yield f"{path}.position", node.get("position") is not None
