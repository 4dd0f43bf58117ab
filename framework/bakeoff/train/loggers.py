"""Names under which loggers keep a run where the recipe gives none, the same when the run continues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from bakeoff.recipe import Recipe
from bakeoff.recipe.signature import signature_of

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

#: What Lightning's loggers call a run that nobody has named.
UNNAMED = (None, "lightning_logs")


def named_loggers(recipe: Recipe, group: str, title: str, key: str, *, folders: bool = True) -> dict[str, Any]:
    """Overrides by path that name a recipe's loggers; `key` stays the same when a run continues, and so does its log.

    Group and run are the arguments `experiment_name` and `run_name` (MLflow), `group`, `name` and `id` (W&B), or `name`
    and `version`, which are folders (CSV, TensorBoard); these are left as they are where `folders` is false.
    """
    found: dict[str, Any] = {}
    for path, node in _nodes(recipe.full["trainer"].get("logger")):
        if "experiment_name" in node:
            names = {"experiment_name": group, "run_name": title}
        elif "id" in node:
            names = {"name": title, "id": key, "group": group}
            if "group" not in node and signature_of(resolve_name(node["use"])).open:
                found[f"{path}.dict_kwargs"] = {"group": group, **(node.get("dict_kwargs") or {})}
        else:
            names = {"name": group, "version": key} if folders else {}
        found |= {f"{path}.{name}": value for name, value in names.items() if node.get(name, "") in UNNAMED}
    return found


def keep_rows(loggers: Iterable[Logger], step: int) -> None:
    """Set aside, as `metrics-to-step-N.csv`, what CSV loggers hold of a run that goes on: they begin anew."""
    from lightning.pytorch.loggers import CSVLogger

    for logger in loggers:
        if isinstance(logger, CSVLogger):
            held = Path(logger.log_dir, "metrics.csv")
            if held.exists():
                held.rename(held.with_name(f"metrics-to-step-{step}.csv"))


def _nodes(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, node in enumerate(value if isinstance(value, list) else [value]):
        if isinstance(node, Mapping):
            yield f"trainer.logger.{index}" if isinstance(value, list) else "trainer.logger", node
