"""Objectives on ranks that work on one model together: its parameters, or the tokens of its rows, are shared out."""

from pathlib import Path

import pytest
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_on_ranks.py")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["tensor", "sequence", "context"])
@pytest.mark.parametrize("use", ["simpo", "orpo"])
def test_equals_one_process(how, use):
    shared_ranks(2).run(CASES, "objective_equals_whole", how=how, use=use, scale=0.5, soft_cap=3.0, bias=True)
