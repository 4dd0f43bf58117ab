"""GRPO against the lines of TRL 1.16's trainer, and the traps of masks, denominators and flat groups."""

import math

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff_align.objectives.policy.grpo import GRPO
from bakeoff_align.rewards.length_reward import LengthReward

from tests.plugins.bakeoff_align.policy.models_of_policy import Free, collection, noted

LENGTHS, MOST, V = [4, 1, 3, 4, 2, 4], 6, 5


def grpo(**given):
    return GRPO(**{"reward": LengthReward(target=1), "max_new_tokens": MOST, "group": 3, **given})


def trl_loss(logits, rows, *, loss_type, beta, low, high):
    """`GRPOTrainer._compute_loss` (TRL 1.16, grpo_trainer.py, lines 3083-3170), of one device and one step."""
    mask, targets = rows["weights"][:, 1:], rows["tokens"][:, 1:]
    per_token_logps = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    advantages = rows["advantages"].unsqueeze(1)
    log_ratio = per_token_logps - rows["old"][:, 1:]
    coef_1 = torch.exp(log_ratio)
    coef_2 = torch.clamp(coef_1, 1 - low, 1 + high)
    per_token_loss = -torch.min(coef_1 * advantages, coef_2 * advantages)
    if beta != 0.0:
        ref = rows["reference"][:, 1:]
        per_token_kl = torch.exp(ref - per_token_logps) - (ref - per_token_logps) - 1
        per_token_loss = per_token_loss + beta * per_token_kl
    if loss_type == "grpo":
        return ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    if loss_type == "bnpo":
        return (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)
    assert loss_type == "dr_grpo"
    return (per_token_loss * mask).sum() / (per_token_loss.size(0) * MOST)


def numbers(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(objective, rows):
    """A model that has gone on since `rows` were collected from it, and the rows; no ratio is 1."""
    T = rows["tokens"].shape[1] - 1
    model = Free(numbers(len(rows["tokens"]), T, V, seed=0))
    objective.attach(model, 0)
    with torch.no_grad():
        model.logits.add_(0.5 * numbers(*model.logits.shape, seed=1))
    rows = noted(objective, model, rows)
    with torch.no_grad():
        model.logits.add_(0.3 * numbers(*model.logits.shape, seed=2))
    return model, rows


def mean_of(objective, model, rows):
    (total, weight), *_ = objective(model, rows)[0].values()
    return total / weight


@pytest.mark.parametrize(("normalise", "loss_type"), [("sequence", "grpo"), ("batch", "bnpo"), ("length", "dr_grpo")])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("high", [0.2, 0.28])
def test_loss_and_gradient_are_those_of_trl(normalise, loss_type, beta, high):
    objective = grpo(normalise=normalise, beta=beta, clip_high=high)
    model, rows = moved(objective, collection(LENGTHS, prompt=2))
    ours = mean_of(objective, model, rows)
    theirs = trl_loss(model.logits, rows, loss_type=loss_type, beta=beta, low=0.2, high=high)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    slopes = [torch.autograd.grad(loss, model.logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*slopes, atol=1e-12, rtol=0)
    _, statistics = objective(model, rows)
    clipped, tokens = statistics["mean.clipped"].tolist()
    assert 0 < clipped < tokens == sum(LENGTHS)  # both branches were compared


def test_advantages_are_those_of_the_paper_with_and_without_division():
    rows = collection([1] * 8) | {"reward": torch.tensor([1.0, 0, 0, 1, 5, 5, 5, 5])}
    for standardise, high in ((True, 0.8658754), (False, 0.5)):
        found = grpo(group=4, standardise=standardise, beta=0.0).credit(rows)
        wanted = high * torch.tensor([1.0, -1, -1, 1, 0, 0, 0, 0])
        torch.testing.assert_close(found["advantages"], wanted, atol=1e-6, rtol=0)
        assert found["degenerate"].tolist() == [0.0] * 4 + [1.0] * 4


def test_kl_in_the_reward_is_taken_before_groups_are_compared():
    rows = collection([2, 1, 1, 1]) | {"reward": torch.ones(4).double()}
    old = torch.zeros_like(rows["weights"])
    old[0, 1:3], old[1:, 1] = torch.tensor([-1.0, -0.5]), torch.tensor([-2.0, -1.0, -1.5])
    found = grpo(group=2, kl="reward", beta=0.5, standardise=False).credit(
        rows | {"old": old, "reference": -rows["weights"]}
    )
    # k1 of the answers: .5, -1, 0, -.5; rewards 1 - .5 k1: .75, 1.5, 1, 1.25
    torch.testing.assert_close(found["advantages"], torch.tensor([-0.375, 0.375, -0.125, 0.125]).double())


@pytest.mark.parametrize("normalise", ["sequence", "batch", "length"])
@pytest.mark.parametrize("given", [{"beta": 0.0}, {"beta": 0.0, "standardise": False}])
def test_groups_that_are_judged_alike_have_exactly_no_gradient_and_are_counted(normalise, given):
    rows = collection(LENGTHS) | {"reward": torch.full((6,), 0.1).double()}
    objective = grpo(normalise=normalise, **given)
    model, rows = moved(objective, rows)
    terms, statistics = objective(model, rows)
    (slope,) = torch.autograd.grad(terms["loss"][0], model.logits)
    assert not slope.any()
    assert statistics["mean.degenerate_groups"].tolist() == [6.0, 6.0]


@pytest.mark.parametrize("normalise", ["sequence", "batch", "length"])
@pytest.mark.parametrize("padding", [1, 45])
def test_padding_changes_nothing(normalise, padding):
    objective = grpo(normalise=normalise)
    model, rows = moved(objective, collection(LENGTHS, prompt=2))
    wider = {name: torch.nn.functional.pad(x, (0, padding)) if x.ndim == 2 else x for name, x in rows.items()}
    wide = Free(torch.nn.functional.pad(model.logits.detach(), (0, 0, 0, padding)))
    ours, theirs = (objective(*pair) for pair in ((model, rows), (wide, wider)))
    for kind in (0, 1):
        assert ours[kind].keys() == theirs[kind].keys()
    for name, (total, weight) in ours[0].items():
        torch.testing.assert_close(theirs[0][name][0], total, atol=1e-12, rtol=0)
        assert theirs[0][name][1] == weight
    for name, value in ours[1].items():
        torch.testing.assert_close(theirs[1][name], value, atol=1e-12, rtol=0)


@pytest.mark.parametrize("normalise", ["sequence", "batch", "length"])
def test_rows_without_a_token_to_learn_from_count_neither_above_nor_below_the_line(normalise):
    objective = grpo(normalise=normalise)
    model, rows = moved(objective, collection(LENGTHS))
    empty = rows | {"weights": rows["weights"].clone()}
    empty["weights"][3:] = 0
    fewer = {name: x[:3] for name, x in rows.items()}
    ours, theirs = (objective(model, given)[0]["loss"] for given in (empty, fewer))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    none = rows | {"weights": torch.zeros_like(rows["weights"])}
    total, weight = objective(model, none)[0]["loss"]
    assert (total.item(), weight.item()) == (0.0, 0.0)
    assert total.requires_grad


@pytest.mark.parametrize("normalise", ["sequence", "batch", "length"])
def test_micro_batches_add_up(normalise):
    objective = grpo(normalise=normalise)
    model, rows = moved(objective, collection(LENGTHS))
    parts = [objective(model, {name: x[some] for name, x in rows.items()}) for some in ([0, 4], [1, 2, 3], [5])]
    whole = objective(model, rows)
    for name, pair in whole[0].items():
        for i in (0, 1):
            torch.testing.assert_close(sum(part[0][name][i] for part in parts), pair[i], atol=1e-12, rtol=0)
    for name, value in whole[1].items():
        torch.testing.assert_close(sum(part[1][name] for part in parts), value, atol=1e-12, rtol=0)


def test_statistics_by_hand():
    rows = collection([1, 2]) | {"reward": torch.tensor([1.0, 0.0]).double()}
    model = Free(torch.zeros(2, 2, V).double())
    objective = grpo(group=2, beta=0.5)
    objective.attach(model, 0)
    with torch.no_grad():
        model.logits[..., 0] = 1.0
    rows = noted(objective, model, rows | {"gap": torch.tensor([0.5, 0.25]).double()})
    _, found = objective(model, rows)
    lse, mask = math.log(math.e + 4), rows["weights"][:, 1:]
    log_p, entropy = (rows["tokens"][:, 1:] == 0).double() - lse, lse - math.e / (math.e + 4)
    assert found["mean.entropy"].tolist() == pytest.approx([3 * entropy, 3])
    assert found["mean.kl"].tolist() == pytest.approx([float(((log_p + math.log(5)) * mask).sum()), 2])
    assert found["nats"].item() == pytest.approx(-float((log_p * mask).sum()))
    assert found["tokens"].item() == 3
    assert found["mean.reward"].tolist() == [1, 2]
    assert found["mean.length"].tolist() == [3, 2]
    assert found["mean.sampling_gap"].tolist() == [0.75, 3]
    assert found["mean.ratio"].tolist() == pytest.approx([3, 3])
    assert found["mean.clipped"].tolist() == [0, 3]


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1.0, 1e4])
def test_entropy_is_never_negative(scale):
    objective = grpo(beta=0.0)
    model, rows = moved(objective, collection(LENGTHS))
    with torch.no_grad():
        model.logits.mul_(scale)
    total, tokens = objective(model, rows)[1]["mean.entropy"].tolist()
    assert 0 <= total <= tokens * math.log(V) + 1e-9


def test_no_reference_is_kept_where_kl_costs_nothing():
    objective = grpo(beta=0.0)
    model, rows = moved(objective, collection(LENGTHS))
    assert not objective.state_dict()
    assert "reference" not in rows
    assert "mean.kl" not in objective(model, rows)[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"group": 1}, "group is 1; GRPO takes at least 2"),
        ({"passes": 0}, "passes is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"clip_low": 1.5}, "clip_low is 1.5"),
        ({"beta": -0.1}, "beta is -0.1"),
        ({"normalise": "tokens"}, "normalise is 'tokens'; it is one of sequence, batch, length"),
        ({"kl": "both"}, "kl is 'both'"),
    ],
)
def test_values_out_of_range_are_refused(given, words):
    with pytest.raises(UserError, match=words):
        grpo(**given)
