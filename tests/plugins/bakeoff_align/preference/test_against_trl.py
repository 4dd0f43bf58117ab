"""Losses and gradients of preference objectives against TRL's own trainers, run on the same model and batch."""

from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from bakeoff.parts.vocabulary import Vocabulary
from bakeoff.testing.host import model
from bakeoff.testing.values import jitter
from bakeoff_align.objectives.preference.dpo import DPO
from bakeoff_align.objectives.preference.ipo import IPO
from bakeoff_align.objectives.preference.kto import KTO
from bakeoff_align.objectives.preference.mismatched import mismatched
from bakeoff_align.objectives.preference.orpo import ORPO
from bakeoff_align.objectives.preference.simpo import SimPO

pytest.importorskip("trl", minversion="1.16", reason="the oracle: pip install trl==1.16.0")

LENGTHS = [(3, 4), (3, 2), (1, 1), (1, 6), (5, 3), (5, 2)]  # of prompt and completion of each row


def network(seed):
    made = model("head", partial(Vocabulary)).initialise(0).double()
    jitter(made, seed)
    return made


def batch_of():
    L, n = max(map(sum, LENGTHS)), len(LENGTHS)
    generator = torch.Generator().manual_seed(0)
    starts, ends = torch.tensor([[p, p + c] for p, c in LENGTHS])[..., None].unbind(1)
    at = torch.arange(L)
    return {
        "tokens": torch.randint(64, (n, L), generator=generator),
        "weights": ((at >= starts) & (at < ends)).float(),
        "real": at < ends,
        "documents": None,
        "right": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.2, 0.9]),
    }


class Theirs(torch.nn.Module):
    """A model as TRL's trainers call it."""

    is_gradient_checkpointing = False

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask=None, labels=None, **_):
        logits, _ = self.inner.logits(input_ids, real=attention_mask.bool())
        if labels is None:
            return SimpleNamespace(logits=logits)
        targets = labels[:, 1:]
        log_p = logits[:, :-1].log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        log_p = torch.where(targets == -100, 0, log_p)
        nothing = torch.zeros_like(log_p)
        return SimpleNamespace(log_probs=log_p, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())


def trainer(inner, reference=None, **settings):
    """What a method of a trainer asks of its object."""
    accelerator = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    held = {"model": Theirs(inner), "ref_model": None if reference is None else Theirs(reference)}
    plain = {"precompute_ref_logps": False, "aux_loss_enabled": False, "label_smoothing": 0.0, "_tp_size": 1}
    held |= {"args": SimpleNamespace(gradient_checkpointing_kwargs=None)}
    told = {"_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0}
    return SimpleNamespace(accelerator=accelerator, **held, **plain, **told, **settings)


def slopes(loss, inner):
    return torch.autograd.grad(loss, list(inner.parameters()))


def same(objective, theirs, inner, batch):
    """Loss and gradients agree."""
    terms, _ = objective(inner, batch)
    total, weight = terms["loss"]
    torch.testing.assert_close(total / weight, theirs, rtol=1e-10, atol=1e-12)
    for one, other in zip(slopes(total / weight, inner), slopes(theirs, inner), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("objective", "loss_type"), [(DPO(beta=0.3), "sigmoid"), (IPO(beta=0.3), "ipo")])
def test_dpo_and_ipo(objective, loss_type):
    from trl.trainer.dpo_trainer import DPOTrainer

    inner, reference, batch = network(1), network(2), batch_of()
    objective.attach(reference, 0)
    order = torch.tensor([0, 2, 4, 1, 3, 5])  # theirs: chosen ones first
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["real"].long()}
    inputs |= {"completion_mask": batch["weights"].long()}
    settings = {"loss_types": [loss_type], "loss_weights": [1.0], "beta": 0.3, "f_divergence_type": "reverse_kl"}
    it = trainer(inner, reference, ld_alpha=None, use_weighting=False, **settings)
    loss = DPOTrainer._compute_loss(it, it.model, {name: t[order] for name, t in inputs.items()}, False)
    same(objective, loss, inner, batch)


def test_kto():
    from trl.trainer.kto_trainer import KTOTrainer

    inner, reference, batch = network(1), network(2), batch_of()
    objective = KTO(beta=0.3, desirable_weight=1.2, undesirable_weight=0.7)
    objective.attach(reference, 0)
    others = mismatched(batch, torch.ones(len(LENGTHS), dtype=torch.bool))
    inputs = {
        "input_ids": batch["tokens"],
        "attention_mask": batch["real"].long(),
        "completion_mask": batch["weights"].long(),
        "KL_input_ids": others["tokens"],
        "KL_attention_mask": others["real"].long(),
        "KL_completion_mask": others["weights"].long(),
        "label": batch["right"] >= 0.5,
    }
    settings = {"beta": 0.3, "desirable_weight": 1.2, "undesirable_weight": 0.7, "loss_type": "kto"}
    it = trainer(inner, reference, calculate_KL=True, **settings)
    it._compute_kl_logps = partial(KTOTrainer._compute_kl_logps, it)
    loss = KTOTrainer._compute_loss(it, it.model, inputs, False)
    assert it._metrics["train"]["kl"][0] > 0  # else it would be cut off
    same(objective, loss, inner, batch)


def logits_and_labels(inner, batch):
    return Theirs(inner)(batch["tokens"], batch["real"]).logits, batch["tokens"].masked_fill(
        batch["weights"] == 0, -100
    )


def test_simpo():
    from trl.experimental.cpo import CPOTrainer

    inner, batch = network(1), batch_of()
    each = CPOTrainer.get_batch_logps(*logits_and_labels(inner, batch), average_log_prob=True)
    it = trainer(inner, loss_type="simpo", simpo_gamma=0.5, beta=2.0, alpha=0.0)
    losses, *_ = CPOTrainer.cpo_loss(it, each[::2], each[1::2])
    same(SimPO(beta=2.0, gamma=0.5), losses.mean(), inner, batch)


def test_orpo():
    """The odds ratio is theirs; they fine-tune on prompts too, and the paper on completions."""
    from trl.experimental.orpo import ORPOTrainer

    inner, batch = network(1), batch_of()
    each = ORPOTrainer.get_batch_logps(*logits_and_labels(inner, batch), average_log_prob=True)
    it = trainer(inner, beta=0.4)
    losses, *_ = ORPOTrainer.odds_ratio_loss(it, each[::2], each[1::2])  # in float32
    terms, _ = ORPO(beta=0.4)(inner, batch)
    total, weight = terms["loss"]
    torch.testing.assert_close(total / weight, -each[::2].mean() - losses.mean().double(), rtol=1e-6, atol=1e-9)
