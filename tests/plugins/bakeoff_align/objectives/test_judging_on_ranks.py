"""Judging objectives on ranks that work on one model together: its parameters or its rows are shared out."""

from pathlib import Path

import pytest
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_judging.py")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["tensor", "sequence", "context"])
@pytest.mark.parametrize("use", ["bradley_terry", "verifying"])
def test_equals_one_process(how, use):
    shared_ranks(2).run(CASES, "judging_equals_whole", how=how, use=use, language=0.5)
