"""Loss, gradients and figures of `bradley_terry` against TRL's reward trainer, run on the same model and batch."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from bakeoff.interfaces import Sequence
from bakeoff.testing.host import model
from bakeoff.testing.values import jitter
from bakeoff_align.objectives.judging.bradley_terry import BradleyTerry
from bakeoff_align.scored import Scored

trl = pytest.importorskip("trl", minversion="1.16", reason="the oracle: pip install trl==1.16.0")

LENGTHS = [5, 7, 4, 4, 7, 2]  # of chosen and rejected rows in turn


class Theirs(torch.nn.Module):
    """A model as TRL's trainer calls it: one number a row, at its last token."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask, **_):
        hidden = self.inner.backbone(Sequence(input_ids, real=attention_mask.bool())).y
        scores = self.inner.head.score(hidden)
        return SimpleNamespace(logits=scores.gather(1, attention_mask.sum(1, keepdim=True) - 1))


def trainer(inner, coefficient):
    """What the method asks of its object."""
    accelerator = SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x)
    told = {"_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0, "_tp_size": 1}
    return SimpleNamespace(
        model=inner.train(),
        accelerator=accelerator,
        args=SimpleNamespace(center_rewards_coefficient=coefficient),
        **told,
    )


@pytest.mark.parametrize(("coefficient", "margins"), [(None, False), (0.3, False), (None, True), (0.3, True)])
def test_same_as_the_reward_trainer(coefficient, margins):
    inner = model("head", Scored).initialise(0).double()
    jitter(inner, 1)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(64, (6, 7), generator=generator)
    real = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    margin = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    batch = {"tokens": tokens, "weights": real.float(), "real": real, "documents": None, "margin": margin}
    terms, statistics = BradleyTerry(centring=coefficient or 0.0, margins=margins)(inner, batch)
    ours = terms["loss"][0] / terms["loss"][1]

    order = [0, 2, 4, 1, 3, 5]  # chosen rows first
    inputs = {"input_ids": tokens[order], "attention_mask": real[order].long()}
    known = trainer(inner, coefficient)
    theirs = trl.RewardTrainer.compute_loss(known, Theirs(inner), inputs | ({"margin": margin} if margins else {}))

    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    parameters = [parameter for parameter in inner.parameters() if parameter is not inner.head.inner.projection.weight]
    for one, other in zip(*(torch.autograd.grad(loss, parameters) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-12)
    for name, theirs_name in (("accuracy", "accuracy"), ("margin", "margin")):
        total, weight = statistics[f"mean.{name}"].tolist()
        assert total / weight == pytest.approx(known._metrics["train"][theirs_name][0], rel=1e-6)
    mean_reward = sum(statistics[f"mean.{name}_reward"][0].item() for name in ("chosen", "rejected")) / 6
    assert mean_reward == pytest.approx(known._metrics["train"]["mean_reward"][0], rel=1e-6)
