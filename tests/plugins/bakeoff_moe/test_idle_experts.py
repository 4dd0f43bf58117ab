"""Experts that no token went to, on several ranks."""

from pathlib import Path

import pytest
import torch

from .ranks import Ranks

E = 8


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_steps_of_two_ranks_with_two_tokens_each_and_eight_experts(tmp_path):
    pool = Ranks(2, Path(__file__).with_name("cases_of_idle_experts.py"), tmp_path)
    names = ("top_k", "switch")
    try:
        for name in names:
            pool.run("steps", router=name, folder=str(tmp_path))
    finally:
        pool.close()
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
