"""Losses of preference objectives: published numbers, formulas by hand, and what masks must leave out."""

import math

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff_align.objectives.preference.dpo import DPO, dpo_losses
from bakeoff_align.objectives.preference.ipo import IPO
from bakeoff_align.objectives.preference.kto import KTO
from bakeoff_align.objectives.preference.mismatched import mismatched, naive_mismatched
from bakeoff_align.objectives.preference.orpo import ORPO, log_odds
from bakeoff_align.objectives.preference.simpo import SimPO
from torch.nn import functional as F

from tests.plugins.bakeoff_align.preference.unigram import Unigram, rows

CHOSEN, REJECTED = 0, 1
#: Of a token of the chosen and of the rejected completion, by the policy and by the reference: those of trl#789.
POLICY, REFERENCE = (-1.0, -2.0), (-1.5, -1.0)
PAIR = ((CHOSEN, 4), (REJECTED, 2))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def loss_of(objective, batch, policy=POLICY, reference=REFERENCE):
    """The mean loss and the means that are told with it."""
    objective.attach(Unigram(*reference), 0)
    terms, statistics = objective(Unigram(*policy), batch)
    total, weight = (value.detach() for value in terms["loss"])
    means = {name.removeprefix("mean."): pair for name, pair in statistics.items() if name.startswith("mean.")}
    return float(total / weight), {name: float(total / max(weight, 1)) for name, (total, weight) in means.items()}


def alike(one, other):
    assert one[0] == pytest.approx(other[0], abs=1e-12)
    assert one[1] == pytest.approx(other[1], abs=1e-12)


def test_dpo_sums_over_tokens():
    """Chosen 4 tokens of -1 against -1.5, rejected 2 of -2 against -1: 0.5130; by means it would be 0.6210."""
    loss, means = loss_of(DPO(beta=0.1), rows(*PAIR))
    assert loss == pytest.approx(0.5130, abs=5e-5)
    assert means == pytest.approx(
        {"accuracy": 1.0, "margin": 0.4, "chosen_reward": 0.2, "rejected_reward": -0.2}, abs=1e-12
    )


def test_ipo_takes_means_over_tokens():
    """(1.5 - 5)^2 = 12.25; by sums it would be 1."""
    assert loss_of(IPO(beta=0.1), rows(*PAIR))[0] == pytest.approx(12.25, abs=1e-12)


def test_simpo_takes_means_of_the_policy_alone():
    loss, means = loss_of(SimPO(beta=2.0, gamma=0.5), rows(*PAIR))
    assert loss == pytest.approx(-math.log(sigmoid(2.0 * (-1 - -2) - 0.5)), abs=1e-12)
    assert means["margin"] == pytest.approx(2.0, abs=1e-12)


def test_orpo_adds_the_odds_ratio_to_fine_tuning():
    odds = [p / (1 - p) for p in (math.exp(-1), math.exp(-2))]
    by_hand = 1 - 0.1 * math.log(sigmoid(math.log(odds[0] / odds[1])))
    assert loss_of(ORPO(beta=0.1), rows(*PAIR))[0] == pytest.approx(by_hand, abs=1e-12)


def test_kto_by_hand():
    """The prompt of each completion with the other one: log-ratios -2 and 2, whose mean is 0."""
    batch = {**rows(*PAIR), "right": torch.tensor([1.0, 0.0])}
    loss, means = loss_of(KTO(beta=0.1, desirable_weight=1.5, undesirable_weight=0.5), batch)
    assert loss == pytest.approx((1.5 * (1 - sigmoid(0.2)) + 0.5 * (1 - sigmoid(0.2))) / 2, abs=1e-12)
    assert means["kl"] == pytest.approx(0, abs=1e-12)
    assert means["chosen_reward"] == pytest.approx(0.2, abs=1e-12)
    assert means["rejected_reward"] == pytest.approx(-0.2, abs=1e-12)


def test_the_distance_of_kto_is_the_mean_over_mismatched_completions():
    """Of the chosen completion alone it is 2, and all are compared with it."""
    batch = {**rows((CHOSEN, 4), (CHOSEN, 4)), "right": torch.tensor([1.0, 0.2])}
    loss, means = loss_of(KTO(beta=0.1), batch)
    assert means["kl"] == pytest.approx(2.0, abs=1e-12)
    assert loss == pytest.approx(0.5, abs=1e-12)


def test_a_single_dialogue_tells_kto_no_distance():
    batch = {**rows((CHOSEN, 4)), "right": torch.tensor([1.0])}
    with pytest.raises(UserError, match=r"data\.micro_batch to 2"):
        loss_of(KTO(), batch)
    with torch.no_grad():
        assert loss_of(KTO(beta=0.1), batch)[0] == pytest.approx(1 - sigmoid(0.2), abs=1e-12)


@pytest.mark.parametrize(
    ("rows_of", "prompts", "padding"),
    [([(0, 4), (1, 2), (0, 1)], (1, 3, 2), 0), ([(0, 4), (1, 2)], (5, 1), 3), ([(1, 3), (0, 7), (1, 1)], (4, 1, 1), 1)],
)
def test_mismatched_rows_equal_the_naive_twin(rows_of, prompts, padding):
    batch = rows(*rows_of, prompts=prompts, padding=padding)
    batch = {name: t if t is None else torch.cat([t[:1] * 0, t]) for name, t in batch.items()}  # the first has no say
    counts = torch.arange(len(rows_of) + 1) > 0
    fast, slow = mismatched(batch, counts), naive_mismatched(batch, counts)
    assert not fast["weights"][len(slow) :].any()
    for i, (tokens, weights) in enumerate(slow):
        real = fast["real"][i]
        assert int(real.sum()) == len(tokens)
        assert bool(real[: len(tokens)].all())
        assert fast["tokens"][i, : len(tokens)].tolist() == tokens
        assert fast["weights"][i].tolist() == weights + [0.0] * (len(real) - len(weights))


@pytest.mark.parametrize("padding", [1, 46])
@pytest.mark.parametrize("objective", [DPO, IPO, SimPO, ORPO, KTO])
def test_padding_changes_nothing(objective, padding):
    right = {"right": torch.tensor([1.0, 0.0])}
    found = [loss_of(objective(), {**rows(*PAIR, padding=more), **right}) for more in (0, padding)]
    alike(*found)


@pytest.mark.parametrize("objective", [DPO, IPO, SimPO, ORPO, KTO])
def test_prompts_have_no_say(objective):
    right = {"right": torch.tensor([1.0, 0.0])}
    found = [loss_of(objective(), {**rows(*PAIR, prompts=n), **right}) for n in (1, 9)]
    alike(*found)


@pytest.mark.parametrize("objective", [DPO, IPO, SimPO, ORPO, KTO])
def test_rows_of_padding_that_fill_a_batch_up_have_no_say(objective):
    batch = {**rows(*PAIR), "right": torch.tensor([1.0, 0.0])}
    filled = {name: t if t is None else torch.cat([t, torch.zeros_like(t)]) for name, t in batch.items()}
    alike(loss_of(objective(), batch), loss_of(objective(), filled))
    filled_losses = objective().token_losses(Unigram(*POLICY), filled)
    assert not filled_losses.weights[2:].any()


def test_dpo_of_the_reference_itself_costs_ln_2():
    loss, means = loss_of(DPO(beta=0.3, label_smoothing=0.2), rows(*PAIR), policy=REFERENCE)
    assert loss == pytest.approx(math.log(2), abs=1e-12)
    assert means["accuracy"] == 0  # neither is above the other


def test_the_slope_of_dpo():
    """-beta sigmoid(-x) by the chosen log-probability, and its opposite by the rejected one."""
    chosen = torch.tensor([0.7, -3.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([-0.2, 1.0], dtype=torch.float64, requires_grad=True)
    dpo_losses(chosen, rejected, beta=0.5).sum().backward()
    slope = -0.5 * torch.sigmoid(-0.5 * (chosen - rejected))
    torch.testing.assert_close(chosen.grad, slope.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(rejected.grad, -slope.detach(), rtol=1e-12, atol=0)


def test_label_smoothing_of_dpo_mixes_both_orders():
    chosen, rejected = torch.tensor([1.0]).double(), torch.tensor([0.25]).double()
    forth, back = dpo_losses(chosen, rejected, beta=2.0), dpo_losses(rejected, chosen, beta=2.0)
    smoothed = dpo_losses(chosen, rejected, beta=2.0, label_smoothing=0.1)
    torch.testing.assert_close(smoothed, 0.9 * forth + 0.1 * back, rtol=1e-12, atol=0)


def test_the_slope_of_a_loss_reaches_the_policy_and_not_the_reference():
    objective, policy = DPO(beta=0.1), Unigram(*POLICY)
    objective.attach(Unigram(*REFERENCE), 0)
    terms, _ = objective(policy, rows(*PAIR))
    terms["loss"][0].backward()
    # By the log-probability of a chosen token -beta sigmoid(-x), of a rejected one its opposite, four and two tokens;
    # a softmax passes on what its own row gets, less its share of the sum.
    by_log_p = torch.tensor([-4.0, 2.0, 0.0]).double() * 0.1 * sigmoid(-0.4)
    p = F.softmax(policy.head.logits.detach(), -1)
    torch.testing.assert_close(policy.head.logits.grad, by_log_p - p * by_log_p.sum(), rtol=1e-10, atol=1e-12)
    assert all(parameter.grad is None for parameter in objective.parameters())


def test_log_odds_stay_finite_where_a_probability_rounds_to_one():
    log_p = torch.tensor([0.0, -1e-12, -800.0], requires_grad=True)
    found = log_odds(log_p)
    found.sum().backward()
    assert bool(found.isfinite().all())
    assert bool(log_p.grad.isfinite().all())
    assert float(log_odds(torch.tensor(math.log(0.75), dtype=torch.float64))) == pytest.approx(math.log(3), abs=1e-12)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DPO(beta=0.0), "beta is 0.0; it must be above 0"),
        (lambda: DPO(label_smoothing=0.5), "label_smoothing is 0.5; it must lie in"),
        (lambda: SimPO(gamma=-1.0), "gamma is -1.0; it must be 0 or more"),
        (lambda: KTO(desirable_weight=0.0), "desirable_weight is 0.0; it must be above 0"),
    ],
)
def test_arguments_out_of_range_are_refused(make, said):
    with pytest.raises(UserError, match=said):
        make()
