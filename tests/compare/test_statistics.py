import math

import pytest
from bakeoff.compare.statistics import estimate, holm, incomplete_beta, paired, t_quantile, t_tail
from scipy import special, stats

# Two-sided 95 % points of Student's t as printed in statistical tables.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize(("freedom", "value"), TABLE.items())
def test_quantiles_equal_the_printed_table(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5.01e-4)


def test_quantiles_of_one_and_two_degrees_have_closed_forms():
    for p in (0.6, 0.9, 0.975, 0.9995):
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-12)
        assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 20, 99, 500.5, 5000])
@pytest.mark.parametrize("p", [0.5, 0.51, 0.75, 0.95, 0.975, 0.995, 0.99999])
def test_quantiles_equal_scipy(freedom, p):
    assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 5, 40])
@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 4.3, 60.0])
def test_tails_equal_scipy(freedom, t):
    assert t_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9)


def test_incomplete_beta_equals_scipy():
    for a, b in ((0.5, 0.5), (1.0, 0.5), (10.0, 0.5), (3.0, 7.0), (250.0, 0.5)):
        for x in (0.0, 1e-6, 0.2, 0.5, 0.9, 1 - 1e-9, 1.0):
            assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-300)


def test_interval_of_three_seeds_by_hand():
    # mean 2, deviation 1, t = 4.3027 with 2 degrees: half width 4.3027 / sqrt(3)
    e = estimate([1.0, 2.0, 3.0])
    assert (e.mean, e.deviation, e.n) == (2.0, 1.0, 3)
    assert e.half == pytest.approx(4.30265272974946 / math.sqrt(3), rel=1e-12)


def test_one_seed_has_no_interval():
    e = estimate([1.5])
    assert (e.mean, e.half, e.deviation, e.interval) == (1.5, None, None, None)


def test_paired_difference_equals_scipy_and_uses_shared_seeds_only():
    arm, base = {0: 1.30, 1: 1.42, 2: 1.29, 7: 9.0}, {0: 1.20, 1: 1.37, 2: 1.21, 5: 0.0}
    d = paired(arm, base)
    test = stats.ttest_rel([1.30, 1.42, 1.29], [1.20, 1.37, 1.21])
    low, high = test.confidence_interval(0.95)
    assert d.seeds == (0, 1, 2)
    assert d.interval == pytest.approx((low, high), rel=1e-9)
    assert d.p == pytest.approx(test.pvalue, rel=1e-9)


def test_pairing_is_what_makes_a_small_difference_visible():
    base = {0: 1.0, 1: 2.0, 2: 3.0}
    arm = {seed: value - 0.1 + wobble for (seed, value), wobble in zip(base.items(), (0.001, 0.0, -0.001), strict=True)}
    assert paired(arm, base).interval[1] < 0 < estimate(list(arm.values())).half


def test_paired_without_a_shared_seed_is_none_and_equal_arms_have_p_one():
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}).p == 1.0


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03 of three: 3 x 0.01, then max(0.03, 2 x 0.02), then max(0.04, 0.03)
    assert holm({"a": 0.02, "b": 0.01, "c": 0.03, "d": None}) == pytest.approx(
        {"a": 0.04, "b": 0.03, "c": 0.04, "d": None}
    )
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_coverage_of_the_interval_is_nominal():
    import random

    draw = random.Random(0)
    runs = 1500
    covered = 0
    for _ in range(runs):
        low, high = estimate([draw.gauss(0.0, 1.0) for _ in range(3)]).interval
        covered += low <= 0.0 <= high
    assert covered / runs == pytest.approx(0.95, abs=0.02)  # 3.6 standard errors of the share
