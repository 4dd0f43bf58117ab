"""Losses and gradients against TRL's own trainers, on the same numbers."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from bakeoff_align.objectives.policy.grpo import GRPO
from bakeoff_align.objectives.policy.rloo import RLOO
from bakeoff_align.rewards.length_reward import LengthReward

from tests.plugins.bakeoff_align.policy.models_of_policy import Free, collection, noted

pytest.importorskip("trl", minversion="1.16", reason="the oracle: pip install trl==1.16.0")

LENGTHS, PROMPT, V = [4, 1, 3, 4, 2, 4], 2, 5
GIVEN = {"reward": LengthReward(target=1), "max_new_tokens": 4, "group": 3}


def moved(objective):
    """A model that has gone on since a collection was made with it, and the collection."""

    def numbers(seed):
        shape = (len(LENGTHS), PROMPT + max(LENGTHS) - 1, V)
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    model = Free(numbers(0))
    objective.attach(model, 0)
    with torch.no_grad():
        model.logits.add_(0.5 * numbers(1))
    rows = noted(objective, model, collection(LENGTHS, prompt=PROMPT))
    with torch.no_grad():
        model.logits.add_(0.3 * numbers(2))
    return model, rows


def trainer(model, rows, **settings):
    """What their `_compute_loss` asks of its object, and is given."""

    def said(*_, **__):
        log_p = model.logits.log_softmax(-1)[:, PROMPT - 1 :]
        entropy = -(log_p.exp() * log_p).sum(-1)
        return log_p.gather(-1, rows["tokens"][:, PROMPT:, None])[..., 0], entropy, None

    accelerator = SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x)
    off = ["aux_loss_enabled", "off_policy_mask_threshold", "use_vllm", "_entropy_bonus_enabled"]
    held = dict.fromkeys(off) | {"top_entropy_quantile": 1.0, "importance_sampling_level": "token"}
    held |= {"args": SimpleNamespace(use_bias_correction_kl=False, delta=None), "accelerator": accelerator}
    held |= {"_metrics": {"train": defaultdict(list)}, "model": SimpleNamespace(training=True)}
    held |= {"epsilon_low": 0.2, "epsilon_high": 0.2, "current_gradient_accumulation_steps": 1}
    inputs = {
        "prompt_ids": rows["tokens"][:, :PROMPT],
        "prompt_mask": rows["real"][:, :PROMPT].long(),
        "completion_ids": rows["tokens"][:, PROMPT:],
        "completion_mask": rows["weights"][:, PROMPT:].long(),
        "advantages": rows["advantages"],
        "old_per_token_logps": rows["old"][:, PROMPT:],
        "ref_per_token_logps": rows["reference"][:, PROMPT:],
        "old_logps": rows["old"].sum(1),
    }
    return SimpleNamespace(_get_per_token_logps_and_entropies=said, **{**held, **settings}), inputs


def same(objective, model, rows, theirs):
    terms, statistics = objective(model, rows)
    ours = terms["loss"][0] / terms["loss"][1]
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    slopes = [torch.autograd.grad(loss, model.logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*slopes, atol=1e-12, rtol=0)
    return {name: float(value[0] / value[1]) for name, value in statistics.items() if name.startswith("mean.")}


@pytest.mark.parametrize(("normalise", "loss_type"), [("sequence", "grpo"), ("batch", "bnpo"), ("length", "dr_grpo")])
def test_grpo(normalise, loss_type):
    from trl.trainer.grpo_trainer import GRPOTrainer

    objective = GRPO(**GIVEN, normalise=normalise, beta=0.3)
    model, rows = moved(objective)
    it, inputs = trainer(model, rows, loss_type=loss_type, beta=0.3, max_completion_length=4)
    told = same(objective, model, rows, GRPOTrainer._compute_loss(it, None, inputs))
    theirs = it._metrics["train"]
    assert told["mean.entropy"] == pytest.approx(theirs["entropy"][0], rel=1e-6)
    assert told["mean.clipped"] == pytest.approx(theirs["clip_ratio/region_mean"][0], rel=1e-6)
    assert told["mean.clipped"] > 0


def test_grpo_over_all_tokens_of_a_step_in_micro_batches():
    from trl.trainer.grpo_trainer import GRPOTrainer

    objective = GRPO(**GIVEN, normalise="batch", beta=0.3)
    model, rows = moved(objective)
    it, inputs = trainer(model, rows, loss_type="dapo", beta=0.3)
    it.accelerator.num_processes, it.args.steps_per_generation = 1, 1
    inputs["num_items_in_batch"] = rows["weights"].sum()
    parts = [
        objective(model, {name: x[some] for name, x in rows.items()})[0]["loss"] for some in ([0, 4, 5], [1, 2, 3])
    ]
    ours = sum(part[0] for part in parts) / sum(part[1] for part in parts)
    torch.testing.assert_close(ours, GRPOTrainer._compute_loss(it, None, inputs), atol=1e-12, rtol=0)


def test_rloo():
    from trl.trainer.rloo_trainer import RLOOTrainer

    objective = RLOO(**GIVEN, beta=0.3)
    model, rows = moved(objective)
    it, inputs = trainer(model, rows, beta=0.3)
    told = same(objective, model, rows, RLOOTrainer._compute_loss(it, None, inputs))
    assert told["mean.clipped"] == pytest.approx(it._metrics["train"]["clip_ratio/region_mean"][0], rel=1e-6)
    assert told["mean.clipped"] > 0
