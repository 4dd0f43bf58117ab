"""Names under which loggers keep a trial where the recipe gives none: the comparison is the group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bakeoff.recipe import Recipe

#: What Lightning's loggers call a run that nobody has named.
UNNAMED = (None, "lightning_logs")


def named_loggers(recipe: Recipe, group: str, title: str, key: str) -> dict[str, Any]:
    """Overrides by path that name a recipe's loggers; `key` stays the same when a trial continues, and so does the run.

    Group and run are the arguments `experiment_name` and `run_name` (MLflow), `group`, `name` and `id` (W&B), or `name`
    and `version`, which are folders (CSV, TensorBoard).
    """
    found: dict[str, Any] = {}
    for path, node in _nodes(recipe.full["trainer"].get("logger")):
        if "experiment_name" in node:
            names = {"experiment_name": group, "run_name": title}
        elif "id" in node:
            names = {"name": title, "id": key}
            found[f"{path}.dict_kwargs"] = {"group": group, **node.get("dict_kwargs", {})}
        else:
            names = {"name": group, "version": key}
        found |= {f"{path}.{name}": value for name, value in names.items() if node.get(name, "") in UNNAMED}
    return found


def _nodes(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, node in enumerate(value if isinstance(value, list) else [value]):
        if isinstance(node, Mapping):
            yield f"trainer.logger.{index}" if isinstance(value, list) else "trainer.logger", node
