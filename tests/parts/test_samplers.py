"""Distributions against probabilities computed by hand; draws against their distribution."""

from __future__ import annotations

import math

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.parts.samplers import Greedy, Sample
from scipy import stats
from torch import Tensor

HALVES = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()  # exact in floating point


def distribution(sampler: Sample, logits: Tensor, seen: Tensor | None = None, grid: int = 4800) -> Tensor:
    """Probabilities, to within 1/grid, from the inverse of the cumulative distribution on an even grid."""
    rows = logits.expand(grid, -1)
    marked = torch.zeros_like(rows, dtype=torch.bool) if seen is None else seen.expand(grid, -1)
    uniform = (torch.arange(grid) + 0.5) / grid
    return torch.bincount(sampler.choose(rows, marked, uniform), minlength=logits.shape[-1]) / grid


def expect(found: Tensor, *wanted: float) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float32), atol=1e-3, rtol=0)


def test_greedy_takes_the_largest_of_each_row():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    none = torch.zeros_like(logits, dtype=torch.bool)
    assert Greedy().choose(logits, none, torch.tensor([0.9, 0.9])).tolist() == [1, 0]


def test_plain_sampling_follows_the_softmax():
    expect(distribution(Sample(), HALVES), 0.5, 0.25, 0.125, 0.125)


def test_temperature_divides_the_logits():
    # squared and renormalised: 16, 4, 1, 1 of 22
    expect(distribution(Sample(temperature=0.5), HALVES), 16 / 22, 4 / 22, 1 / 22, 1 / 22)


def test_top_k_keeps_k_and_renormalises():
    expect(distribution(Sample(top_k=2), HALVES), 2 / 3, 1 / 3, 0, 0)
    expect(distribution(Sample(top_k=2), HALVES.flip(0)), 0, 0, 1 / 3, 2 / 3)


def test_top_k_keeps_exactly_k_of_equals_and_any_k_up_to_the_vocabulary():
    assert int((distribution(Sample(top_k=2), torch.zeros(5)) > 0).sum()) == 2
    expect(distribution(Sample(top_k=99), HALVES), 0.5, 0.25, 0.125, 0.125)


@pytest.mark.parametrize(
    ("p", "wanted"),
    [
        (0.49, (1, 0, 0, 0)),
        (0.5, (1, 0, 0, 0)),  # reached exactly by the first
        (0.51, (2 / 3, 1 / 3, 0, 0)),  # the one that crosses is kept
        (0.75, (2 / 3, 1 / 3, 0, 0)),
        (1.0, (0.5, 0.25, 0.125, 0.125)),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, wanted: tuple[float, ...]):
    expect(distribution(Sample(top_p=p), HALVES), *wanted)


def test_top_p_goes_by_likelihood_and_not_by_order():
    logits = torch.tensor([0.125, 0.5, 0.125, 0.25]).log()
    expect(distribution(Sample(top_p=0.6), logits), 0, 2 / 3, 0, 1 / 3)


def test_top_p_counts_the_mass_that_top_k_left():
    # of the two kept, the first has 2/3 of the mass
    expect(distribution(Sample(top_k=2, top_p=0.6), HALVES), 1, 0, 0, 0)


def test_min_p_is_relative_to_the_most_likely():
    expect(distribution(Sample(min_p=0.4), HALVES), 2 / 3, 1 / 3, 0, 0)
    expect(distribution(Sample(min_p=0.5), HALVES), 2 / 3, 1 / 3, 0, 0)  # exactly half as likely: kept
    expect(distribution(Sample(min_p=1.0), HALVES), 1, 0, 0, 0)
    expect(distribution(Sample(min_p=0.0), HALVES), 0.5, 0.25, 0.125, 0.125)


def test_min_p_sees_the_tempered_distribution():
    # at temperature 2 the masses are as the square roots, 1, .707, .5, .5 of the largest
    kept = torch.tensor([0.5, 0.25, 0, 0]).sqrt()
    expect(distribution(Sample(temperature=2.0, min_p=0.6), HALVES), *(kept / kept.sum()).tolist())


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    logits = torch.tensor([2.0, 2.0, -1.0, -1.0, 0.0])
    seen = torch.tensor([True, False, True, False, True])
    wanted = torch.tensor([1.0, 2.0, -2.0, -1.0, 0.0]).softmax(-1)
    expect(distribution(Sample(repetition_penalty=2.0), logits, seen), *wanted.tolist())


def test_rows_are_drawn_by_their_own_number_alone():
    logits, sampler = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)), Sample(top_p=0.9)
    none = torch.zeros_like(logits, dtype=torch.bool)
    uniform = torch.tensor([0.1, 0.5, 0.9])
    together = sampler.choose(logits, none, uniform)
    alone = torch.cat([sampler.choose(logits[i : i + 1], none[:1], uniform[i : i + 1]) for i in range(3)])
    assert together.tolist() == alone.tolist()


def test_ids_of_no_mass_are_never_drawn_even_at_the_ends_of_the_interval():
    last = torch.ones(()).nextafter(torch.zeros(()))
    logits = torch.tensor([[-math.inf, 0.0, 0.3, 0.1, -math.inf]])
    none = torch.zeros_like(logits, dtype=torch.bool)
    assert int(Sample().choose(logits, none, torch.zeros(1))) == 1
    assert int(Sample().choose(logits, none, last[None])) == 3
    assert int(Sample(top_p=1.0).choose(logits, none, last[None])) == 1


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_draws_agree_with_the_distribution(options: dict):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(10, generator=generator)
    sampler, n = Sample(**options), 20_000
    rows = logits.expand(n, -1)
    drawn = sampler.choose(rows, torch.zeros_like(rows, dtype=torch.bool), torch.rand(n, generator=generator))
    counts = torch.bincount(drawn, minlength=10).double()
    wanted = distribution(sampler, logits, grid=100_000).double()
    kept = wanted > 0
    assert counts[~kept].sum() == 0
    assert stats.chisquare(counts[kept].numpy(), (wanted[kept] / wanted[kept].sum() * n).numpy()).pvalue > 0.001


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "temperature is 0.0; it must be positive: use the sampler 'greedy'"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0; it must be at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ],
)
def test_values_out_of_range_are_refused(options: dict, words: str):
    with pytest.raises(UserError, match=words):
        Sample(**options)


def test_only_the_plain_draw_is_from_the_models_own_distribution():
    assert Sample().faithful
    assert Sample(top_p=1.0, min_p=0.0).faithful
    shaped = [{"temperature": 0.7}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"repetition_penalty": 1.1}]
    assert not any(Sample(**options).faithful for options in shaped)
    assert not Greedy().faithful
