"""Experts that no token went to, on several ranks."""

from pathlib import Path

import pytest
import torch
from bakeoff.testing.ranks import shared_ranks

E = 8
CASES = Path(__file__).with_name("cases_of_idle_experts.py")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_steps_of_two_ranks_with_two_tokens_each_and_eight_experts(tmp_path):
    names = ("top_k", "switch")
    for name in names:
        shared_ranks(2).run(CASES, "steps", router=name, folder=str(tmp_path))
    for name in names:
        for step in range(2):
            one, other = (torch.load(tmp_path / f"{name}-{step}-{number}.pt") for number in range(2))
            chosen = one.pop("chosen")
            assert torch.equal(chosen, other.pop("chosen"))
            idle = chosen == 0
            assert 4 <= idle.sum() < E
            for key, gradient in one.items():
                assert torch.equal(gradient, other[key])
                assert not gradient[idle].any()
                assert gradient.any()
