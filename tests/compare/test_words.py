import pytest
from bakeoff.compare.words import count, decimals, duration, percent, plural, short_size, signed, size


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (7, "7"), (999, "999"), (1000, "1k"), (38_123, "38.1k"), (999_700, "1M"), (2.55e6, "2.55M"),
     (2.93e12, "2.93T"), (8.4e18, "8.4E"), (0.25, "0.25")],
)  # fmt: skip
def test_counts_have_three_digits(value, text):
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (310 * 2**20, "310 MiB")]
)
def test_sizes_are_binary(value, text):
    assert size(value) == text
    assert short_size(value) == text.replace(" ", "").replace("iB", "").replace("B", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.25, "1.2 s"), (9.97, "10.0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7260, "2 h 01 min")],
)
def test_durations_say_no_more_than_they_know(seconds, text):
    assert duration(seconds) == text


def test_decimals_show_two_digits_of_the_narrowest_interval():
    assert decimals() == decimals(None) == decimals(0.0) == 3
    assert decimals(0.5) == decimals(0.031) == 3
    assert decimals(0.0021) == 4
    assert decimals(0.5, 0.00021) == 5
    assert decimals(1e-9) == 6


def test_signs_percent_and_plurals():
    assert signed(-0.00004, 3) == "+0.000"
    assert signed(-0.0625, 3) == "-0.062"
    assert percent(0.95) == "95 %"
    assert percent(0.005) == "0.5 %"
    assert percent(-0.0042, 2, sign=True) == "-0.42 %"
    assert plural(1, "seed") == "1 seed"
    assert plural(3, "seed") == "3 seeds"
