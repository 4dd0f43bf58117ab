"""The one LightningModule: every recipe is trained by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.objective import MEAN, Objective
from bakeoff.interfaces.schedule import Schedule
from bakeoff.model import LanguageModel
from bakeoff.model.carrying import Carried, odd_values
from bakeoff.parallel.gradients import Gradients
from bakeoff.parallel.layout import Layout, Learner, pieces
from bakeoff.parallel.pieces import fill_from
from bakeoff.train.collecting import COLLECTION, Collector
from bakeoff.train.failures import check_finite
from bakeoff.train.lanes import LANES, gathered, restored
from bakeoff.train.loop import LeanModule
from bakeoff.train.optimizer_state import refuse_cut
from bakeoff.train.optimizers import build_optimizer, set_rates
from bakeoff.train.randomness import mix, seed_device
from bakeoff.train.resume import set_counters
from bakeoff.train.sums import StepSums, Totals
from bakeoff.train.trainer import batch_rank, batch_ranks, check_optimizer


class Clock:
    """Where the run stands: optimizer steps done, micro-batches of the next one, and what it does at present."""

    def __init__(self, step: int = 0):
        self.step, self.micro, self.doing = step, 0, "starting"


class LastStep:
    """What the latest optimizer step was, in plain numbers."""

    def __init__(
        self,
        means: dict[str, float],
        pairs: dict[str, tuple[float, float]],
        *,
        nats: float,
        tokens: float,
        norm: float,
        stop: bool,
        odd: float,
    ):
        self.means, self.pairs, self.nats, self.tokens = means, pairs, nats, tokens
        self.norm, self.stop, self.odd = norm, stop, odd


class TrainingModule(LeanModule):
    """A model under an objective.

    Gradients are those of each term's sum divided by its weight over the whole optimizer step (all micro-batches, all
    ranks), before clipping. Every micro-batch draws its randomness from (seed, step, micro-batch, rank). Learning rates
    are set from the schedule before each optimizer step, and gradients dropped right after it, so that they take no
    room in the next forward pass: `on_before_optimizer_step` is where a callback sees them.

    Parameters
    ----------
    make_optimizer : the recipe's optimizer, called with parameter groups.
    total : optimizer steps of the whole run.
    nominal : about how many targets an optimizer step has.
    seed : of dropout and other noise.
    clock : where the run stands.
    drawn : seed of the first values, which are drawn where the model is laid out on a mesh.
    begun : weights to begin from in their place, by name, read there; what they leave out stays as drawn.
    lanes : rows of the global batch whose states go on from step to step, and into checkpoints; None: no state does.
    collector : for an objective that learns from what the model itself says; else None.
    wants_stop : whether this process was asked to stop; ranks agree on it once a step.
    """

    totals: Totals
    learner: Learner

    def __init__(
        self,
        *,
        model: LanguageModel,
        objective: Objective,
        make_optimizer: Callable[[Iterable[Any]], Optimizer],
        schedule: Schedule,
        total: int,
        nominal: int,
        seed: int,
        clock: Clock,
        drawn: int = 0,
        begun: Callable[[], Mapping[str, Tensor]] | None = None,
        lanes: int | None = None,
        wants_stop: Callable[[], bool] = lambda: False,
        collector: Collector | None = None,
    ):
        super().__init__()
        self.model, self.objective = model, objective
        self.__dict__["learner"] = Learner(model, objective)  # the same modules once more, so no child
        self.drawn, self.begun = drawn, begun
        self.own: dict[str, nn.Parameter] = {}  # what the optimizer has in another form than the model
        self.gradients: Gradients | None = None
        self.make_optimizer, self.schedule, self.total = make_optimizer, schedule, total
        self.nominal = float(2 ** round(math.log2(nominal)))  # a power of two: dividing by it rounds nothing
        self.seed, self.clock, self.wants_stop = seed, clock, wants_stop
        self.lanes, self.carried = lanes, None if lanes is None else Carried(model)
        self.collector = collector
        self.last: LastStep | None = None
        self.told: dict[str, Tensor] = {}  # what the layers tell of the latest step
        self.trained: list[nn.Parameter] = []

    @property
    def layout(self) -> Layout | None:
        """How the model stands on a mesh; None where it is whole on each rank."""
        return getattr(self.trainer.strategy, "layout", None)

    def configure_model(self) -> None:
        """Lay the model out on the mesh, where there is one, with its first values."""
        if self.layout is None:
            return
        self.trainer.precision_plugin.convert_module(self.learner)  # what is shared out keeps the type that it has
        self.layout.lay_out(self.learner, self.trainer.strategy.root_device, self.drawn)
        if self.begun is not None:
            begun = {f"model.{name}": tensor for name, tensor in self.begun().items()}
            fill_from(begun, {name: piece for name, piece in pieces(self.learner).items() if name in begun})

    def configure_optimizers(self) -> Optimizer:
        """Two groups: see `parameter_groups`."""
        layout = self.layout
        if layout is not None:
            leaves = list(layout.leaves(self.learner))
            self.own = {leaf.name: leaf.own for leaf in leaves}
            self.gradients = Gradients(leaves, layout.mesh)
        optimizer = build_optimizer(self.make_optimizer, self.learner, self.own)
        check_optimizer(self.trainer, optimizer)
        if layout is not None:
            trained = (leaf for leaf in leaves if leaf.own.requires_grad)
            refuse_cut(optimizer, (leaf.name for leaf in trained if leaf.different - {"expert"}))
        return optimizer

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Let the loop's counters say where the run stands under this number of ranks."""
        set_counters(checkpoint["loops"], self.clock.step, self.trainer.accumulate_grad_batches)
        if self.collector is not None:
            self.collector.load_state_dict(checkpoint.get(COLLECTION))
        if self.lanes is not None:
            trainer, lanes = self.trainer, self.lanes
            self.carried = restored(
                checkpoint.get(LANES),
                self.model,
                lanes=lanes,
                accumulation=trainer.accumulate_grad_batches,
                ranks=trainer.world_size,
                rank=trainer.global_rank,
                device=trainer.strategy.root_device,
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the states of all lanes, and what was collected; all ranks call it."""
        if self.collector is not None:
            checkpoint[COLLECTION] = self.collector.state_dict()
        if self.carried is not None:
            checkpoint[LANES] = gathered(self.carried, self.trainer.world_size)

    def on_fit_start(self) -> None:
        """Learn how many ranks there are."""
        ranks, alike = self.trainer.world_size, 1
        if self.gradients is None:
            self.trained = [p for p in self.parameters() if p.requires_grad]
        else:
            self.trained = [leaf.own for leaf in self.gradients.leaves]
            alike = ranks // batch_ranks(self.trainer)
        self.batch_ranks, self.batch_rank = batch_ranks(self.trainer), batch_rank(self.trainer)
        add_up = partial(all_add, alike=alike) if ranks > 1 else None
        together = self.gradients is not None
        self.sums = StepSums(nominal=self.nominal, ranks=ranks, add_up=add_up, together=together)

    def training_step(self, batch: Mapping[str, Tensor | None], batch_idx: int) -> Tensor:
        """The scaled sum of a micro-batch."""
        clock = self.clock
        if self.collector is not None:
            batch = self._collected(self.collector, batch)
        number = clock.micro * self.batch_ranks + self.batch_rank  # of the micro-batch among all of the step
        seed_device(mix(self.seed, clock.step, number), self.device)
        clock.micro, clock.doing = clock.micro + 1, "forward"
        terms, statistics = self._run(batch, clock.micro - 1)
        if self.sums.add_up is not None:  # ranks agree on whether to stop in the same exchange that adds up the loss
            asked = torch.tensor(float(self.wants_stop()), device=self.device)
            statistics = {**statistics, "stop": asked}
        parts = self.trainer.accumulate_grad_batches
        whole = parts == 1 and self.sums.add_up is None
        return self.sums.enter(terms, statistics, whole=whole) * parts  # Lightning divides by them

    def _collected(self, collector: Collector, batch: Mapping[str, Tensor | None]) -> Mapping[str, Tensor | None]:
        """The rows that a batch names, of what is collected first where that is due."""
        clock = self.clock
        if collector.due(clock.step):
            clock.doing = "collecting"
            collector.collect(self.model, clock.step, self.batch_ranks, self.batch_rank)
        return collector.batch(batch, self.device)

    def _run(self, batch: Mapping[str, Tensor | None], number: int) -> tuple[Any, Any]:
        """The objective on micro-batch `number` of the step, from the states of its lanes where they have any."""
        if self.carried is None:
            return self.learner(batch)
        terms, statistics = self.carried.run(self.objective, batch, number)
        return terms, {**statistics, "odd": odd_values(self.carried.after[number])}

    def backward(self, loss: Tensor) -> None:
        """Differentiate; at the last micro-batch of a step, bring gradients to their final scale."""
        self.clock.doing = "backward"
        if not loss.requires_grad:
            raise UserError("nothing that is trained has a part in the loss of a batch: let trained name other weights")
        if self.sums.apart:
            self._refuse_apart()
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            self.sums.keep_apart(self.trained, 1.0 if scaler is None else scaler.get_scale())
        loss.backward()
        if self.trainer.fit_loop._should_accumulate():
            self.clock.doing = "reading"
        else:
            if self.gradients is None:
                self.totals = self.sums.finish(self.trained)
            else:
                self.gradients.adopt()
                self.totals = self.sums.finish(self.trained)
                self.gradients.add_up()
            self.clock.doing = "updating"

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Before the first micro-batch of a step is differentiated."""
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """No parameter has a gradient."""
        if self.gradients is not None:
            self.gradients.drop()
            return
        for parameter in self.trained:
            parameter.grad = None

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Refuse what is not finite, then clip; the norm is computed once for both."""
        if self.gradients is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.trained if p.grad is not None])
        else:
            norm = self.gradients.norm()
        self.last = last = self._read(norm)
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None  # skips steps that overflow itself
        norm_seen = 0.0 if scaled else last.norm
        check_finite(self.clock.step + 1, last.means, norm_seen, self._not_finite, last.odd)
        if not gradient_clip_val:
            return
        if gradient_clip_algorithm == "value":
            torch.nn.utils.clip_grad_value_(self.trained, gradient_clip_val)
        elif last.norm > gradient_clip_val:
            torch.nn.utils.clip_grads_with_norm_(self.trained, gradient_clip_val, norm)

    def _not_finite(self) -> list[str]:
        """Names of the parameters whose gradients are not finite, the same on all ranks."""
        if self.gradients is not None:
            return self.gradients.not_finite()
        return [n for n, p in self.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())]

    def _refuse_apart(self) -> None:
        layout = self.layout
        if layout is not None and layout.mesh.size("shard") > 1:
            raise CapabilityError(
                f"the loss terms {', '.join(self.sums.apart)} have weights of their own, and are differentiated apart, "
                "which shards of parameters do not allow: give trainer.strategy no ranks along shard"
            )

    def _read(self, norm: Tensor) -> LastStep:
        plain, (plain_norm,) = self.totals.numbers(norm)
        terms = [name.removeprefix("sum.") for name in plain if name.startswith("sum.")]
        means = {term: plain[f"sum.{term}"] / (plain[f"weight.{term}"] or math.inf) for term in terms}
        pairs = {}
        if self.objective.reads_dialogues:  # for others, the curve's loss is what is trained
            pairs = {term: (plain[f"sum.{term}"], plain[f"weight.{term}"]) for term in terms}
        for name in self.totals.places:
            if name.startswith(MEAN):
                total, weight = self.totals[name].tolist()
                pairs[name.removeprefix(MEAN)] = (total, weight)
        return LastStep(
            means,
            pairs,
            nats=plain["nats"],
            tokens=plain["tokens"],
            norm=plain_norm,
            stop=plain.get("stop", 0.0) > 0,
            odd=plain.get("odd", 0.0),
        )

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """One optimizer step at the schedule's rate; then parts that learn by rule see the step's statistics."""
        set_rates(self.trainer.optimizers[0], self.schedule.factor(self.clock.step, self.total))
        optimizer.step(closure=optimizer_closure)
        self.drop_gradients()
        aux = {
            name.removeprefix("aux."): self.totals[name].float()
            for name in self.totals.places
            if name.startswith("aux.")
        }
        if aux:
            backbone = cast(Backbone, self.model.backbone)
            with torch.no_grad():
                self.told = backbone.layer_statistics(aux)
                backbone.after_step(self.told)
        if self.carried is not None:
            self.carried.commit()
        self.clock.step += 1
        self.clock.micro, self.clock.doing = 0, "reading"


def all_add(vector: Tensor, alike: int = 1) -> Tensor:
    """The sum of a tensor over all ranks, in place, of which `alike` have the same rows each."""
    torch.distributed.all_reduce(vector)
    return vector if alike == 1 else vector.div_(alike)
