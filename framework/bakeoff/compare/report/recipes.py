"""What differs between the recipes of the arms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Sections that differ by design or say nothing about the model.
LEFT_OUT = ("seed", "name", "imports")


class _Absent:
    def __repr__(self) -> str:
        return "absent"


#: Stands for a path that an arm's recipe does not have.
ABSENT = _Absent()


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Dotted path -> leaf. Lists of plain values are leaves; empty mappings too."""
    if isinstance(tree, Mapping) and tree:
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list) and any(isinstance(value, (Mapping, list)) for value in tree):
        items = [(str(i), value) for i, value in enumerate(tree)]
    else:
        return {path: tree}
    found: dict[str, Any] = {}
    for key, value in items:
        found |= flat(value, f"{path}.{key}" if path else key)
    return found


def differing(
    trees: Mapping[str, Mapping[str, Any]], full: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Paths at which the arms' recipes are not all the same -> value by arm (`ABSENT` where there is none).

    Paths are those that some arm's recipe says; `full` holds the defaults of what an arm leaves unsaid.
    """
    said = {arm: flat(tree) for arm, tree in trees.items()}
    leaves = {arm: {**flat(full[arm] if full else {}), **said[arm]} for arm in trees}
    found: dict[str, dict[str, Any]] = {}
    for path in dict.fromkeys(path for flattened in said.values() for path in flattened):
        values = {arm: flattened.get(path, ABSENT) for arm, flattened in leaves.items()}
        first = next(iter(values.values()))
        if path.split(".")[0] not in LEFT_OUT and any(repr(value) != repr(first) for value in values.values()):
            found[path] = values
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(path: str) -> list[tuple[bool, str]]:
    """Sorts a node's `use` before its arguments."""
    return [(segment != "use", segment) for segment in path.split(".")]
