"""PPO against the formulas of its papers, written plainly, and the traps of rewards and pads."""

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff_align.objectives.policy.answers import last_real
from bakeoff_align.objectives.policy.ppo import PPO
from bakeoff_align.rewards.length_reward import LengthReward

from tests.plugins.bakeoff_align.policy.models_of_policy import Free, collection, noted

LENGTHS, V = [4, 1, 3, 4, 2], 5


def ppo(**given):
    return PPO(**{"reward": LengthReward(target=1), "max_new_tokens": 4, "standardise_values": False, **given}).double()


def numbers(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(objective, rows):
    """A model and a value that have gone on since `rows` were collected from them, and the rows."""
    T = rows["tokens"].shape[1] - 1
    model = Free(numbers(len(rows["tokens"]), T, V, seed=0))
    objective.attach(model, 0)
    objective.double()
    weight = objective.value.readout.weight
    with torch.no_grad():
        model.logits.add_(0.5 * numbers(*model.logits.shape, seed=1))
        weight[:, 1:] = 0.5 * numbers(1, 2, seed=3)  # the first feature is the number of a place
    rows = noted(objective, model, rows)
    with torch.no_grad():
        model.logits.add_(0.3 * numbers(*model.logits.shape, seed=2))
        weight[:, 1:] += 0.3 * numbers(1, 2, seed=4)
    return model, rows


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()


def masked_whiten(values, mask, shift_mean):
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask) * mask.sum() / (mask.sum() - 1)
    whitened = (values - mean) * torch.rsqrt(variance + 1e-8)
    return whitened if shift_mean else whitened + mean


def plain(model, objective, rows, *, beta, gamma, lam, whiten_rewards, whiten_advantages):
    """Policy and value loss, transcribed: Ziegler et al. 2019 (rewards), Schulman et al. 2016 and 2017."""
    mask, targets = rows["weights"][:, 1:], rows["tokens"][:, 1:]
    old, values = rows["old"][:, 1:], rows["values"][:, 1:]
    rewards = torch.zeros_like(old)
    if beta:
        rewards = -beta * (old - rows["reference"][:, 1:])
    for row in range(len(rewards)):
        last = max(t for t in range(mask.shape[1]) if mask[row, t])
        rewards[row, last] += rows["reward"][row]
    if whiten_rewards:
        rewards = masked_whiten(rewards, mask, shift_mean=False) * mask
    advantages, lastgaelam = [], 0
    for t in reversed(range(mask.shape[1])):
        nextvalues = values[:, t + 1] if t + 1 < mask.shape[1] else 0.0
        delta = rewards[:, t] + gamma * nextvalues - values[:, t]
        lastgaelam = delta + gamma * lam * lastgaelam
        advantages.append(lastgaelam)
    advantages = torch.stack(advantages[::-1], 1)
    returns = advantages + values
    if whiten_advantages:
        advantages = masked_whiten(advantages, mask, shift_mean=True)
    log_p = model.logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    ratio = torch.exp(log_p - old)
    policy = masked_mean(torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)), mask)
    readout = objective.value.readout
    features = model.backbone.features.view(*model.logits.shape[:2], -1)
    found = features @ readout.weight[0, 1:] + readout.bias
    near = torch.clamp(found, values - 0.2, values + 0.2)
    return policy, 0.5 * masked_mean(torch.max((found - returns) ** 2, (near - returns) ** 2), mask)


@pytest.mark.parametrize("beta", [0.0, 0.25])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5)])
@pytest.mark.parametrize(("whiten_rewards", "whiten_advantages"), [(False, True), (True, True), (False, False)])
def test_losses_and_gradients_are_those_of_the_formulas(beta, gamma, lam, whiten_rewards, whiten_advantages):
    given = {"beta": beta, "gamma": gamma, "lam": lam}
    given |= {"whiten_rewards": whiten_rewards, "whiten_advantages": whiten_advantages}
    objective = ppo(**given)
    model, rows = moved(objective, collection(LENGTHS))
    terms, statistics = objective(model, rows)
    ours = [total / weight for total, weight in terms.values()]
    theirs = plain(model, objective, rows, **given)
    assert list(terms) == ["loss", "value"]
    assert terms["loss"][1] is terms["value"][1]  # one backward pass serves both
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(ours[1], 0.1 * theirs[1], atol=1e-12, rtol=0)
    learnt = [model.logits, objective.value.readout.weight, objective.value.readout.bias]
    slopes = [torch.autograd.grad(a + b, learnt) for a, b in (ours, (theirs[0], 0.1 * theirs[1]))]
    torch.testing.assert_close(slopes[0][0], slopes[1][0], atol=1e-12, rtol=0)
    torch.testing.assert_close(slopes[0][1][:, 1:], slopes[1][1][:, 1:], atol=1e-12, rtol=0)
    torch.testing.assert_close(slopes[0][2], slopes[1][2], atol=1e-12, rtol=0)
    clipped, tokens = statistics["mean.clipped"].tolist()
    assert 0 < clipped < tokens == sum(LENGTHS)


@pytest.mark.parametrize("beta", [0.0, 0.25])
def test_rewards_may_be_of_any_size_where_values_are_standardised(beta):
    """Rewards and their KL times 50, and 1000 more on each: the same loss, value loss and gradients."""
    found = []
    for factor, more in ((1.0, 0.0), (50.0, 1000.0)):
        objective = ppo(beta=factor * beta, lam=0.9, standardise_values=True)
        rows = collection(LENGTHS)
        model, rows = moved(objective, rows | {"reward": factor * rows["reward"] + more})
        terms, _ = objective(model, rows)
        total = sum(total for total, _ in terms.values())
        slopes = torch.autograd.grad(total, [model.logits, objective.value.readout.weight])
        found.append([*(total for total, _ in terms.values()), *slopes])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)


def test_values_are_told_in_deviations_from_the_mean_of_the_first_collection():
    objective = ppo(beta=0.0, lam=0.0, whiten_advantages=False, standardise_values=True)
    rows = collection([2, 2, 2]) | {"reward": torch.tensor([10.0, 10.0, 40.0]).double()}  # of mean 20, variance 200
    rows["values"] = torch.zeros_like(rows["weights"])
    first = objective.credit(rows)
    torch.testing.assert_close(first["advantages"][:, 1:], torch.tensor([[0, -10.0], [0, -10], [0, 20]]).double())
    wanted = torch.tensor([[0, -10.0], [0, -10], [0, 20]]).double() / 200**0.5
    torch.testing.assert_close(first["returns"][:, 1:], wanted)
    again = ppo(beta=0.0, lam=0.0, whiten_advantages=False, standardise_values=True)
    again.load_state_dict(objective.state_dict())
    rows |= {"reward": torch.tensor([7.0, 7.0, 7.0]).double(), "values": rows["weights"]}  # a deviation above the mean
    second = objective.credit(rows)
    expected = 20 + 200**0.5
    torch.testing.assert_close(second["advantages"][:, 2], torch.full((3,), 7 - expected).double())
    torch.testing.assert_close(again.credit(rows), second)


def test_rewards_that_are_all_equal_at_first_have_a_deviation_of_one():
    objective = ppo(beta=0.0, lam=0.0, whiten_advantages=False, standardise_values=True)
    rows = collection([1, 1]) | {"reward": torch.zeros(2).double()}
    rows["values"] = 3 * rows["weights"]
    assert objective.credit(rows)["advantages"].tolist() == [[0, -3], [0, -3]]


def test_the_score_lands_on_the_last_token_that_was_drawn_and_never_on_a_pad():
    rows = collection([3, 4, 1], prompt=2, padding=2)  # ended early, cut where there was no more room, one token
    rows |= {"values": torch.zeros_like(rows["weights"]), "reward": torch.tensor([5.0, 6.0, 7.0]).double()}
    found = ppo(beta=0.0, lam=0.0, whiten_advantages=False).credit(rows)["advantages"]  # of lam 0: the rewards
    wanted = torch.zeros(3, 8).double()
    wanted[0, 4], wanted[1, 5], wanted[2, 2] = 5, 6, 7
    assert torch.equal(found, wanted)
    none = torch.zeros(1, 4, dtype=torch.bool)
    assert not last_real(none).any()


def test_nothing_is_expected_after_the_last_token_even_where_the_answer_was_cut():
    rows = collection([3, 3]) | {"reward": torch.tensor([1.0, 1.0]).double()}
    rows["values"] = 0.5 * rows["weights"]
    found = ppo(beta=0.0, lam=0.95, whiten_advantages=False).credit(rows)
    wanted = torch.tensor([[0, 0.45125, 0.475, 0.5]] * 2, dtype=torch.float64)
    torch.testing.assert_close(found["advantages"], wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(found["returns"], wanted + rows["values"], atol=1e-12, rtol=0)


def test_each_token_pays_its_own_kl():
    rows = collection([2]) | {"reward": torch.tensor([1.0]).double()}
    rows |= {"old": torch.tensor([[0.0, -1, -2]]).double(), "reference": torch.tensor([[0.0, -3, -1.5]]).double()}
    rows["values"] = torch.zeros_like(rows["old"])
    objective = ppo(beta=0.5, lam=0.0, whiten_advantages=False)
    objective.attach(Free(torch.zeros(1, 2, V)), 0)
    torch.testing.assert_close(objective.credit(rows)["advantages"], torch.tensor([[0, -1.0, 1.25]]).double())


def test_what_kl_costs_is_steered_after_a_collection_and_is_in_the_checkpoint():
    objective = ppo(beta=0.5, target_kl=1.0, lam=0.0, whiten_advantages=False)
    model = Free(torch.zeros(1, 2, V))
    objective.attach(model, 0)
    rows = collection([2]) | {"reward": torch.tensor([0.0]).double()}
    rows |= {"old": torch.tensor([[0.0, -1, -1]]).double(), "reference": torch.tensor([[0.0, -3, -3]]).double()}
    rows["values"] = torch.zeros_like(rows["old"])
    assert objective.credit(rows)["advantages"].tolist() == [[0, -1, -1]]  # the first collection pays 0.5
    assert objective.coefficient.value.item() == pytest.approx(0.51)  # KL 4, target 1
    again = ppo(beta=0.5, target_kl=1.0, lam=0.0, whiten_advantages=False)
    again.attach(model, 0)
    again.load_state_dict(objective.state_dict())
    second = objective.credit(rows)
    torch.testing.assert_close(again.credit(rows), second)
    assert again.coefficient.value == objective.coefficient.value
    assert objective(model, rows | second)[1]["mean.beta"].tolist() == pytest.approx([0.51, 1])


def test_the_value_is_zero_before_it_has_learnt_anything_and_learns_with_the_model():
    objective = ppo()
    model = Free(numbers(2, 3, V, seed=0))
    objective.attach(model, 0)
    rows = noted(objective, model, collection([3, 2]))
    assert not rows["values"].any()
    assert {name for name, p in objective.named_parameters() if p.requires_grad} == {
        "value.readout.weight",
        "value.readout.bias",
    }
    terms, _ = objective(model, rows)
    terms["value"][0].backward()
    assert objective.value.readout.bias.grad.abs() > 0


def test_micro_batches_add_up():
    objective = ppo()
    model, rows = moved(objective, collection(LENGTHS))
    parts = [objective(model, {name: x[some] for name, x in rows.items()}) for some in ([0, 4], [1, 2, 3])]
    whole = objective(model, rows)
    for name, pair in whole[0].items():
        for i in (0, 1):
            torch.testing.assert_close(sum(part[0][name][i] for part in parts), pair[i], atol=1e-12, rtol=0)
    for name, value in whole[1].items():
        torch.testing.assert_close(sum(part[1][name] for part in parts), value, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"lam": -0.1}, "lam is -0.1"),
        ({"clip_value": 0.0}, "clip_value is 0.0"),
        ({"target_kl": 0.0}, "target_kl is 0.0"),
        ({"target_kl": 6.0, "beta": 0.0}, "target_kl is 6.0 and beta 0.0"),
        ({"group": 0}, "group is 0; PPO takes at least 1"),
    ],
)
def test_values_out_of_range_are_refused(given, words):
    with pytest.raises(UserError, match=words):
        ppo(**given)
