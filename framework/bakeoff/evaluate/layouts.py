"""What a recipe costs on so many devices, laid out in each way that its parts allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from bakeoff.data import Data
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate.planning import searched, vocabulary_size
from bakeoff.evaluate.precision import PRECISIONS, precision_of
from bakeoff.interfaces.spans import too_short
from bakeoff.model.cost import plan
from bakeoff.model.devices import Accelerator
from bakeoff.model.language_model import LanguageModel
from bakeoff.model.recompute import MODES
from bakeoff.parallel.planner.counting import Kept, count_blocks, count_optimizer
from bakeoff.parallel.planner.estimate import Job
from bakeoff.parallel.planner.layouts import layouts
from bakeoff.parallel.planner.rank import Ranking, rank
from bakeoff.parallel.planner.ring import smallest_block, smallest_sequence
from bakeoff.parallel.planner.stages import Weights, experts, kv_share, stages, takes_context, weights
from bakeoff.recipe import Recipe
from bakeoff.recipe.demands import outlined
from bakeoff.train.master_weights import with_masters

#: In which ranks along `context` have their tokens, as a mesh has them by default.
ORDER = "zigzag"


@dataclass(frozen=True)
class LayoutPlan:
    """The layouts of a recipe on `devices` devices of one kind, over `nodes` nodes, and what a ring would ask of it.

    `groups` are the layers that are alike, by number; `kv_share` how many key-value heads a query head has, None where
    no part attends to all of the past. `notes` say what could not be told.
    """

    device: Accelerator
    devices: int
    nodes: int
    job: Job
    ranking: Ranking
    groups: tuple[tuple[int, ...], ...]
    kv_share: float | None
    notes: tuple[str, ...]

    @property
    def per_node(self) -> int:
        """Devices of a node."""
        return self.devices // self.nodes

    def ring(self, bandwidth: float) -> tuple[float, float]:
        """Tokens of the smallest block, and of a rank, at which a ring over links of `bandwidth` waits for nothing."""
        share = 1.0 if self.kv_share is None else self.kv_share
        return smallest_block(self.device.flops, bandwidth, share), smallest_sequence(
            self.device.flops, bandwidth, share
        )


def plan_layouts(recipe: Recipe, device: Accelerator, devices: int, nodes: int | None = None) -> LayoutPlan:
    """Plan `recipe` on `devices` devices over `nodes` nodes (as few as hold them, unless given).

    Raises `UserError` if the devices do not fill the nodes alike, or the step cannot be planned.
    """
    nodes = _nodes(device, devices, nodes)
    recipe.check()
    data: Data = recipe.build("data")
    vocabulary = vocabulary_size(recipe, data)
    model = outlined(recipe, vocabulary, max_length=data.length)
    groups = _alike(model, [layer.numbers for layer in plan(model, data.length).layers])
    job, notes = _job(recipe, data, vocabulary, model, groups)
    candidates = [
        layout
        for layout in layouts(devices, context=takes_context(model), expert=bool(experts(model)))
        if all(count % layout.expert == 0 for count in experts(model))
        and too_short(data.length, layout.context, ORDER) is None
    ]
    ranking = rank(job, candidates, device, devices // nodes)
    return LayoutPlan(device, devices, nodes, job, ranking, groups, kv_share(model, data.length), tuple(notes))


def _nodes(device: Accelerator, devices: int, nodes: int | None) -> int:
    nodes = -(-devices // device.per_node) if nodes is None else nodes
    if devices % nodes or devices // nodes > device.per_node:
        right = f"at most {device.per_node} of {device.title}, and as many on each"
        raise UserError(f"{devices} devices on {nodes} nodes: a node holds {right}; change --devices or --nodes")
    return nodes


def _job(
    recipe: Recipe, data: Data, vocabulary: int, model: Any, groups: tuple[tuple[int, ...], ...]
) -> tuple[Job, list[str]]:
    precision = precision_of(recipe)
    if precision not in PRECISIONS:
        raise UserError(
            f"layouts are not planned for trainer.precision {precision}; use one of {', '.join(PRECISIONS)}"
        )
    own, mixed = PRECISIONS[precision]
    build = partial(recipe.build, "model", vocab_size=vocabulary, max_length=data.length)
    like = {number: group[0] for group in groups for number in group}
    like[max(like)] = max(like)  # the last block is followed by the final norm
    counted = sorted(set(like.values()))
    told = partial(
        count_blocks,
        build,
        recipe.build("objective"),
        counted,
        length=data.length,
        searched=searched(data),
        dtype=own,
        mixed=mixed,
    )
    documents, notes = _documents(told, data.isolate_documents, recipe.stateful)

    @lru_cache
    def kept(rows: int, mode: str) -> list[Kept]:
        before, *blocks, head = told(rows=rows, recompute=mode, documents=documents)
        return [before, *(blocks[counted.index(like[i])] for i in range(len(like))), head]

    @lru_cache
    def held(tensor: int) -> list[Weights]:
        return weights(model, tensor)

    states, updating = count_optimizer(build, with_masters(recipe.build("optimizer")), own)
    job = Job(
        stages=stages(model, data.length),
        weights=held,
        kept=kept,
        rows=lambda ranks: (data.micro(ranks), data.accumulation(ranks)),
        length=data.length,
        width=model.context.d_model,
        own=own.itemsize,
        computing=(mixed or own).itemsize,
        optimizer=states,
        updating=updating,
        modes=MODES if recipe.recompute == "none" else (recipe.recompute,),
    )
    return job, notes


def _alike(model: LanguageModel, groups: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Layers of a group that are alike in backward too: the same of each is trained, and before both something is or
    nothing."""
    backbone = model.backbone
    later = {id(p) for part in [*backbone.stream, *backbone.shared_parts] for p in part.parameters()}
    begun = any(p.requires_grad for p in backbone.parameters() if id(p) not in later)
    backward: list[Any] = []
    for block in backbone.layers:
        trained = tuple(name for name, parameter in block.named_parameters() if parameter.requires_grad)
        backward.append((begun, trained))
        begun = begun or bool(trained)
    found: dict[Any, list[int]] = {}
    for group, numbers in enumerate(groups):
        for number in numbers:
            found.setdefault((group, backward[number]), []).append(number)
    return tuple(map(tuple, found.values()))


def _documents(count: Any, wanted: bool, stateful: bool) -> tuple[bool, list[str]]:
    """Whether rows are counted with several documents, as data hold them, and what is to be said of that."""
    notes = ["states of lanes are not counted"] if stateful else []
    for documents in (True, False) if wanted else (False,):
        try:
            count(rows=1, documents=documents)
        except Exception as error:  # whatever a part of anybody's may raise when it is run on shapes alone
            fault = f"a part cannot run on shapes alone ({type(error).__name__}: {error})"
            if not documents:
                raise CapabilityError(f"memory cannot be planned: {fault}") from error
            notes.append(f"rows are taken to hold one document; with several, {fault}")
        else:
            return documents, notes
    raise AssertionError
