"""Expert iteration by hand: which answers are kept, and what is learnt from them."""

import logging

import pytest
import torch
from bakeoff_align.objectives.policy.expert_iteration import ExpertIteration
from bakeoff_align.rewards.length_reward import LengthReward

from tests.plugins.bakeoff_align.policy.models_of_policy import Free, collection, noted

V = 5


def made(rewards, answers, group):
    """A model, the objective, and a collection of `answers` behind prompts of a token."""
    rows = collection([len(answer) for answer in answers])
    for row, answer in enumerate(answers):
        rows["tokens"][row, 1 : 1 + len(answer)] = torch.tensor(answer)
    rows["reward"] = torch.tensor(rewards).double()
    objective = ExpertIteration(reward=LengthReward(target=1), max_new_tokens=3, group=group, threshold=0.5)
    shape = (len(answers), rows["tokens"].shape[1] - 1, V)
    model = Free(torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return model, objective, noted(objective, model, rows)


def test_right_answers_are_kept_each_once_to_a_prompt():
    answers = [[1, 2], [1, 2], [1, 2, 3], [1, 2]]
    _, _, rows = made([1.0, 0.5, 0.4, 1.0], answers, group=2)
    assert rows["kept"].tolist() == [1, 0, 0, 1]  # the second repeats the first; the fourth answers another prompt
    assert rows["weights"].sum(1).tolist() == [2, 0, 0, 2]
    assert rows["length"].tolist() == [2, 2, 3, 2]
    _, _, rows = made([0.4, 0.5, 1.0, 1.0], answers, group=4)
    assert rows["kept"].tolist() == [0, 0, 1, 0]  # a repetition of what was wrong is one all the same


def test_the_loss_is_the_mean_over_the_tokens_that_are_kept():
    model, objective, rows = made([1.0, 0.0, 0.7, 0.2], [[1, 2], [3], [4], [1, 1, 1]], group=2)
    terms, statistics = objective(model, rows)
    log_p = model.logits.log_softmax(-1)
    wanted = -(log_p[0, 0, 1] + log_p[0, 1, 2] + log_p[2, 0, 4])
    total, weight = terms["loss"]
    torch.testing.assert_close(total, wanted, atol=1e-12, rtol=0)
    assert weight.item() == 3
    assert statistics["mean.kept"].tolist() == [2, 4]
    assert statistics["mean.reward"].tolist() == pytest.approx([1.9, 4])
    assert statistics["mean.length"].tolist() == [7, 4]


def test_a_collection_with_none_right_is_a_zero_that_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        model, objective, rows = made([0.4, 0.0], [[1, 2], [3]], group=2)
    assert "none of 2 answers reaches the threshold of 0.5" in caplog.text
    total, weight = objective(model, rows)[0]["loss"]
    assert (total.item(), weight.item()) == (0.0, 0.0)
    (slope,) = torch.autograd.grad(total, model.logits)
    assert not slope.any()
