"""What a policy objective learns from: answers of the model as it stands, collected every few optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bakeoff.data.data import Data
from bakeoff.data.dialogues.batches import chosen
from bakeoff.data.dialogues.reading import DialogueReading, template_of
from bakeoff.data.order import sample_order
from bakeoff.errors import UserError
from bakeoff.interfaces.objective import Objective
from bakeoff.interfaces.policy import Collecting, PolicyObjective
from bakeoff.interfaces.sampler import Sampler
from bakeoff.recipe import Recipe
from bakeoff.train.randomness import mix

#: Under which a checkpoint holds the collection.
COLLECTION = "collection"


class Collector:
    """Collects for an objective, and holds what was collected; all ranks hold all of it.

    Which prompts a collection has, and what is drawn for them, is a function of the seeds and of its number, and not of
    how many ranks share them out.

    Parameters
    ----------
    order : seed of the order of prompts. draws : seed of the answers.
    """

    def __init__(self, objective: PolicyObjective, data: Data, sampler: Sampler, *, order: int, draws: int):
        self.objective, self.data, self.sampler = objective, data, sampler
        self.order, self.draws = order, draws
        self.number: int | None = None
        self.held: dict[str, Tensor] = {}
        self.prompts = objective.prompts(data.global_batch)
        self.store = cast(DialogueReading, data.reading(objective)).store("train")
        self._check_room()

    @property
    def steps(self) -> int:
        """Optimizer steps that a collection lasts."""
        return self.objective.passes * self.objective.updates

    def due(self, step: int) -> bool:
        """Whether something is to be collected before optimizer step `step` begins."""
        return self.number != step // self.steps

    def collect(self, model: Any, step: int, ranks: int = 1, rank: int = 0) -> None:
        """Collect what step `step` and those after it learn from; all ranks call it together."""
        if ranks > self.prompts:
            raise UserError(
                f"a collection has {self.prompts} prompts for {ranks} ranks: raise data.batch_tokens or "
                "objective.updates, so that each has one"
            )
        number = step // self.steps
        places = np.arange(number * self.prompts, (number + 1) * self.prompts)
        chosen_prompts = sample_order(places, len(self.store), self.order)
        mine = np.array_split(np.arange(self.prompts), ranks)[rank]
        told = Collecting(
            tokenizer=self.data.tokenizer,
            template=template_of(self.data, self.objective),
            sampler=self.sampler,
            length=self.data.length,
            seed=mix(self.draws, number),
            first=int(mine[0]),
        )
        dialogues = [self.store.dialogue(int(place)) for place in chosen_prompts[mine]]
        rows = _joined(self.objective.collect(model, dialogues, told), ranks)
        self.held = rows | self.objective.credit(rows)
        self.number = number

    def _check_room(self) -> None:
        """`UserError` naming the longest prompt, where it leaves no room for an answer."""
        store, length, new = self.store, self.data.length, self.objective.max_new_tokens
        targets = np.flatnonzero(store.weights > 0)
        starts = store.ends - store.lengths
        places = np.searchsorted(targets, starts)
        first = np.minimum(np.append(targets, len(store.weights))[places], store.ends)
        longest = int((first - starts).argmax())
        size = int((first - starts)[longest])
        if size + new > length:
            raise UserError(
                f"dialogue {longest} of the train split has a prompt of {size} tokens; with data.length {length} and "
                f"objective.max_new_tokens {new} a prompt has at most {max(length - new, 0)}: set data.length to at "
                f"least {size + new}, or allow fewer new tokens"
            )

    def batch(self, batch: Mapping[str, Tensor | None], device: torch.device) -> dict[str, Tensor]:
        """The rows of the collection that a batch names."""
        rows = batch["rows"]
        assert rows is not None
        return {name: tensor.to(device) for name, tensor in chosen(self.held, rows.cpu()).items()}

    def state_dict(self) -> dict[str, Any]:
        """What a continued run takes over."""
        return {"number": self.number, "held": self.held}

    def load_state_dict(self, state: Any) -> None:
        """Take it over; `UserError` where it is not what `state_dict` gave."""
        rows = self.prompts * self.objective.group
        sound = isinstance(state, dict) and isinstance(state.get("held"), dict)
        if not sound or any(len(tensor) != rows for tensor in state["held"].values()):
            raise UserError(f"the checkpoint holds no collection of {rows} rows to go on with")
        self.number, self.held = state["number"], state["held"]


def _joined(mine: dict[str, Tensor], ranks: int) -> dict[str, Tensor]:
    """The rows of all ranks, in order."""
    if ranks == 1:
        return mine
    each: list[dict[str, Tensor]] = [{} for _ in range(ranks)]
    torch.distributed.all_gather_object(each, mine)
    return {name: torch.cat([part[name] for part in each]) for name in each[0]}


def collector_of(recipe: Recipe, data: Data, objective: Objective) -> Collector | None:
    """What collects for an objective that learns from what the model itself says; None for others."""
    if not objective.collects:
        return None
    seeds = {"order": recipe.seed_of("data"), "draws": recipe.seed_of("sampling")}
    return Collector(cast(PolicyObjective, objective), data, recipe.build("sampler"), **seeds)
