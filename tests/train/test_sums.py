"""The one division of each loss term, against numbers worked out by hand."""

import lightning.pytorch as pl
import pytest
import torch
from bakeoff.interfaces import LayerContext, Result
from bakeoff.interfaces.objective import Objective
from bakeoff.parts.causal import Causal
from bakeoff.parts.schedules import Constant
from bakeoff.parts.vocabulary import Vocabulary
from bakeoff.train.loop import NoProfiler
from bakeoff.train.module import Clock, TrainingModule
from bakeoff.train.sums import StepSums
from torch import nn
from torch.utils.data import DataLoader


class Scaled(Objective):
    """A token costs `level` times what the batch says; `level` is the one parameter. Term "own" has its own weight."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.ones(()))

    def tokens_wanted(self, length):
        return length

    def token_losses(self, model, batch):
        raise AssertionError("nothing is validated here")

    def forward(self, model, batch):
        weight = batch["weights"].sum()
        value = (batch["costs"] * batch["weights"]).sum() * self.level
        terms = {"loss": (value, weight)}
        if "own" in batch:
            terms["own"] = (batch["own"].sum() * self.level, torch.tensor(float(batch["own"].numel())))
        return terms, {"nats": value.detach(), "tokens": weight}


def batch(*costs, real=None, own=None):
    weights = torch.ones(len(costs)) if real is None else torch.tensor(real)
    extra = {} if own is None else {"own": torch.tensor(own)}
    return {"costs": torch.tensor(costs), "weights": weights, **extra}


class Watch(pl.Callback):
    """The rate that each micro-batch is used with, and the latest means of the terms."""

    def __init__(self):
        self.rates, self.waiting, self.means = [], 0, {}

    def on_train_batch_start(self, *_):
        self.waiting += 1

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.rates += [optimizer.param_groups[0]["lr"]] * self.waiting
        self.waiting = 0

    def on_train_batch_end(self, trainer, module, *_):
        self.means = module.last.means if module.last else {}


def train(batches, *, accumulation=1, clip=None, schedule=None, watch=None):
    """One epoch of plain gradient descent at rate 1; returns the parameter."""
    module = TrainingModule(
        model=nn.Identity(),
        objective=Scaled(),
        make_optimizer=lambda groups: torch.optim.SGD(groups, lr=1.0),
        schedule=schedule or Constant(),
        total=len(batches) // accumulation,
        nominal=4,
        seed=0,
        clock=Clock(),
    )
    trainer = pl.Trainer(
        max_epochs=1, accumulate_grad_batches=accumulation, gradient_clip_val=clip, profiler=NoProfiler(),
        callbacks=[] if watch is None else [watch], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(batches, batch_size=None))
    return module.objective.level.item()


def test_a_token_counts_alike_in_every_micro_batch():
    # one token of loss 4, then three of 0: the mean is 1.0, not the mean of means 2.0
    watch = Watch()
    assert train([batch(4.0), batch(0.0, 0.0, 0.0)], accumulation=2, watch=watch) == pytest.approx(1.0 - 1.0)
    assert watch.means == {"loss": pytest.approx(1.0)}


def test_clipping_sees_the_final_gradient():
    assert train([batch(4.0), batch(0.0, 0.0, 0.0)], accumulation=2, clip=0.25) == pytest.approx(0.75)
    assert train([batch(4.0), batch(0.0, 0.0, 0.0)], accumulation=2, clip=3.0) == pytest.approx(0.0)


def test_a_batch_without_targets_changes_nothing():
    watch = Watch()
    assert train([batch(5.0, 7.0, real=[0.0, 0.0])], watch=watch) == 1.0
    assert watch.means == {"loss": 0.0}
    assert train([batch(5.0, real=[0.0]), batch(0.5)], accumulation=2) == pytest.approx(0.5)


def test_a_term_with_a_weight_of_its_own_is_divided_by_it():
    # loss: (4 + 0 + 0 + 0) / 4 = 1; own: (3 + 1 + 2) / 3 = 2; gradient 3
    pieces = [batch(4.0, own=[3.0, 1.0]), batch(0.0, 0.0, 0.0, own=[2.0])]
    assert train(pieces, accumulation=2) == pytest.approx(1.0 - 3.0)


def test_weights_are_known_at_once_where_a_micro_batch_is_the_whole_step():
    assert train([batch(4.0, 0.0, 0.0, 0.0, own=[3.0, 1.0, 2.0])]) == pytest.approx(1.0 - 3.0)
    assert train([batch(4.0, 0.0, own=[])]) == pytest.approx(1.0 - 2.0)
    assert train([batch(7.0, real=[0.0], own=[3.0])]) == pytest.approx(1.0 - 3.0)
    assert train([batch(7.0, real=[0.0], own=[])]) == 1.0
    for whole in (False, True):  # one backward pass for all terms, or one for each weight
        sums = StepSums(nominal=4.0)
        sums.enter(*Scaled()(None, batch(4.0, own=[3.0])), whole=whole)
        assert list(sums.apart) == ([] if whole else ["own"])


class Held(pl.Callback):
    """Whether there is a gradient: before the optimizer's step, and after the micro-batch."""

    def __init__(self):
        self.before, self.after = [], []

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.before.append(module.objective.level.grad is not None)

    def on_train_batch_end(self, trainer, module, *_):
        self.after.append(module.objective.level.grad is not None)


def test_a_gradient_lives_until_its_step_and_no_longer():
    held = Held()
    train([batch(1.0)] * 4, accumulation=2, watch=held)
    assert held.before == [True, True]
    assert held.after == [True, False, True, False]


class Reciprocal(Constant):
    def factor(self, step, total):
        return 1.0 / (step + 1)


def test_rates_change_with_optimizer_steps_and_not_with_batches():
    for accumulation, expected in ((1, [1, 1 / 2, 1 / 3, 1 / 4]), (2, [1, 1, 1 / 2, 1 / 2])):
        watch = Watch()
        train([batch(0.0)] * 4, accumulation=accumulation, schedule=Reciprocal(), watch=watch)
        assert watch.rates == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ranks", "mean"),
    [
        ([batch(6.0), batch(2.0, 2.0, 2.0)], 3.0),  # not the mean of means 4.0
        ([batch(9.0, real=[0.0]), batch(2.0, 2.0)], 2.0),  # a rank without targets
        ([batch(9.0, real=[0.0]), batch(9.0, real=[0.0])], 0.0),
    ],
)
def test_a_token_counts_alike_on_every_rank(ranks, mean):
    objective = Scaled()
    parameter = objective.level
    # what an all-reduce gives: the sum of the ranks' vectors, and the mean of their gradients
    vectors, gradients = [], []
    for piece in ranks:
        sums = StepSums(nominal=4.0, ranks=2)
        (gradient,) = torch.autograd.grad(sums.enter(*objective(None, piece)), [parameter])
        vectors.append(sums.vector)
        gradients.append(gradient)
    sums = StepSums(nominal=4.0, ranks=2, add_up=lambda _: vectors[0] + vectors[1])
    sums.enter(*objective(None, ranks[0]))
    parameter.grad = (gradients[0] + gradients[1]) / 2
    totals = sums.finish([parameter])
    assert parameter.grad.item() == pytest.approx(mean)
    assert totals["weight.loss"].item() == sum(piece["weights"].sum().item() for piece in ranks)


def test_terms_that_come_and_go_between_micro_batches_are_refused():
    with pytest.raises(ValueError, match=r"differ between micro-batches: sum\.own, weight\.own"):
        train([batch(1.0, own=[1.0]), batch(1.0)], accumulation=2)


class Oracle(nn.Module):
    """Hidden states that name the id after each token, so that logits are +20 for it and -20 for all others."""

    def __init__(self, size):
        super().__init__()
        self.table = torch.full((size, size), -20.0)
        self.table[torch.arange(size - 1), torch.arange(1, size)] = 20.0

    def forward(self, sequence, state=None):
        return Result(self.table[sequence.tokens])

    def layer_losses(self, aux):
        return {}


def test_targets_are_shifted_once():
    # ids 1 … 5 under a model that knows the next id: loss 0, and 40 where targets were shifted twice
    model = nn.Module()
    model.backbone, model.head = Oracle(8), Vocabulary(LayerContext(d_model=8, vocab_size=8, max_length=8))
    with torch.no_grad():
        model.head.projection.weight.copy_(torch.eye(8))
    terms, statistics = Causal()(model, {"tokens": torch.arange(1, 6)[None], "documents": None})
    value, weight = terms["loss"]
    assert weight.item() == statistics["tokens"].item() == 4
    assert (value / weight).item() == pytest.approx(0.0, abs=1e-6)
