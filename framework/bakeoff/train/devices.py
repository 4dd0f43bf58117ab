"""Whether a recipe can be trained on the devices that it asks for: asked before anything is prepared or started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bakeoff.errors import CapabilityError, RecipeError
from bakeoff.interfaces.strategy import Strategy
from bakeoff.model import LanguageModel
from bakeoff.recipe import Recipe
from bakeoff.recipe.slips import near
from bakeoff.registry import names
from bakeoff.train.optimizer_state import refuse_cut


def check_devices(recipe: Recipe, model: LanguageModel) -> None:
    """Raise `UserError` for what the processes that `trainer:` asks for cannot do with a recipe.

    model : its own, on any device; the size of its vocabulary does not matter.
    """
    given = recipe.tree["trainer"]
    named = given.get("strategy") or "auto"
    devices, nodes = devices_of(given), given.get("num_nodes") or 1
    strategy = recipe.build("trainer.strategy") if isinstance(named, Mapping) else None
    reading = devices * nodes
    if isinstance(strategy, Strategy):
        cut = strategy.check(model, devices=devices, nodes=nodes, length=recipe.build("data").length)
        if recipe.stateful and not strategy.carries_state:
            raise CapabilityError(
                "trainer.stateful carries states from step to step, which a mesh does not: use strategy ddp"
            )
        trained = {name for name, held in model.named_parameters(remove_duplicate=False) if held.requires_grad}
        refuse_cut(recipe.build("optimizer").func, (name for name in cut if name in trained))
        reading = strategy.batch_ranks(devices=devices, nodes=nodes)
    elif named != "auto" and isinstance(named, str):
        _refuse_unknown(named, recipe.place("trainer.strategy"))
    recipe.build("data").micro(reading)


def devices_of(given: Mapping[str, Any]) -> int:
    """Processes on a machine, by the arguments of a trainer."""
    devices = given.get("devices") or "auto"
    if isinstance(devices, (list, tuple)):
        return len(devices)
    if str(devices) in ("auto", "-1"):
        on_cpu = given.get("accelerator") == "cpu" or not torch.accelerator.is_available()
        return 1 if on_cpu else torch.accelerator.device_count()
    return int(devices)


def _refuse_unknown(name: str, place: str) -> None:
    from lightning.pytorch.strategies import StrategyRegistry  # slow to import, and most recipes name none of its

    own, theirs = [entry.name for entry in names("strategy")], ["auto", *StrategyRegistry.available_strategies()]
    if name not in theirs:
        known = f"{', '.join(own)} and, of Lightning's, {', '.join(one for one in theirs if '_find_' not in one)}"
        hint = near(name, [*own, *theirs])
        raise RecipeError(f"trainer.strategy{place}: no strategy is called '{name}'; there are {known}{hint}")
