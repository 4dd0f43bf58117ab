"""Advantages against numbers worked by hand, and against their naive twins."""

import pytest
import torch
from bakeoff_align.objectives.policy.advantages import (
    generalised_advantages,
    group_advantages,
    leave_one_out,
    naive_generalised_advantages,
    naive_leave_one_out,
    naive_whitened,
    whitened,
)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_mask(B, T, seed=0):
    """One run of True a row, of a length from 1 to T."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, T, (B, 1), generator=generator)
    last = first + (torch.rand(B, 1, generator=generator) * (T - first)).long()
    return (torch.arange(T) >= first) & (torch.arange(T) <= last)


@pytest.mark.parametrize(("lam", "wanted"), [(0.95, [0.45125, 0.475, 0.5]), (1.0, [0.5, 0.5, 0.5])])
def test_generalised_advantages_of_a_reward_at_the_end(lam, wanted):
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]).double(), torch.full((1, 3), 0.5).double()
    found = generalised_advantages(rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=1.0, lam=lam)
    torch.testing.assert_close(found, torch.tensor([wanted], dtype=torch.float64), atol=1e-12, rtol=0)


def test_padding_and_prompt_do_not_reach_the_advantages_of_an_answer():
    rewards, values = torch.tensor([[9.0, 0.0, 0.0, 1.0, 7.0, 7.0]]), torch.tensor([[3.0, 0.5, 0.5, 0.5, 4.0, 4.0]])
    mask = torch.tensor([[False, True, True, True, False, False]])
    found = generalised_advantages(rewards, values, mask, gamma=1.0, lam=0.95)
    torch.testing.assert_close(found, torch.tensor([[0, 0.45125, 0.475, 0.5, 0, 0]]))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (0.5, 0.0), (1.0, 1.0)])
def test_generalised_advantages_equal_the_sum(gamma, lam):
    rewards, values, mask = numbers(5, 9), numbers(5, 9, seed=1), some_mask(5, 9)
    found = generalised_advantages(rewards, values, mask, gamma=gamma, lam=lam)
    torch.testing.assert_close(
        found, naive_generalised_advantages(rewards, values, mask, gamma=gamma, lam=lam), atol=1e-12, rtol=0
    )


def test_group_advantages_divide_by_the_deviation_of_one_less_than_the_group():
    found = group_advantages(torch.tensor([[1.0, 0, 0, 1]]).double(), standardise=True)
    torch.testing.assert_close(
        found, 0.8658754 * torch.tensor([[1.0, -1, -1, 1]], dtype=torch.float64), atol=5e-8, rtol=0
    )
    plain = group_advantages(torch.tensor([[1.0, 0, 0, 1]]), standardise=False)
    assert plain.tolist() == [[0.5, -0.5, -0.5, 0.5]]


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e6 + 0.1])
def test_a_group_that_is_judged_alike_has_advantages_of_exactly_zero(value):
    for G in (2, 3, 7):
        rewards = torch.full((1, G), value)
        for found in (group_advantages(rewards, standardise=True), leave_one_out(rewards)):
            assert not found.any()


def test_leave_one_out_by_hand_and_by_its_twin():
    found = leave_one_out(torch.tensor([[3.0, 1.0, 2.0, 6.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, -8 / 3, -4 / 3, 4.0]]))
    rewards = numbers(6, 5)
    torch.testing.assert_close(leave_one_out(rewards), naive_leave_one_out(rewards), atol=1e-12, rtol=0)


@pytest.mark.parametrize("shift", [True, False])
def test_whitening_sees_the_tokens_of_the_mask_alone(shift):
    values, mask = numbers(4, 7), some_mask(4, 7)
    found = whitened(values, mask, shift=shift)
    torch.testing.assert_close(found, naive_whitened(values, mask, shift=shift), atol=1e-12, rtol=0)
    assert not found[~mask].any()
    spoilt = torch.where(mask, values, 100.0)
    assert torch.equal(whitened(spoilt, mask, shift=shift), found)


def test_whitening_by_hand():
    values, mask = torch.tensor([[1.0, 2.0, 3.0, 50.0]]).double(), torch.tensor([[True, True, True, False]])
    torch.testing.assert_close(whitened(values, mask), torch.tensor([[-1.0, 0, 1, 0]]).double(), atol=1e-7, rtol=0)
    kept = whitened(2 * values, mask, shift=False)
    torch.testing.assert_close(kept, torch.tensor([[3.0, 4, 5, 0]]).double(), atol=1e-7, rtol=0)


def test_a_single_token_has_no_variance_to_divide_by():
    alone = whitened(torch.tensor([[5.0, 1.0]]), torch.tensor([[True, False]]))
    assert alone.tolist() == [[0.0, 0.0]]
