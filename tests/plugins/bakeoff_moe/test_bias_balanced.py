"""`bias_balanced` by hand, in the simulation of a router that begins unbalanced, and in a run."""

import os
import subprocess
import sys

import bakeoff
import pytest
import torch
import yaml
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.train import fit, load_run
from bakeoff_moe import BiasBalanced


def router(n_experts, scores=None, **arguments):
    """One whose input is its scores' logits, or with the first values of its own."""
    made = BiasBalanced(LayerContext(d_model=n_experts, vocab_size=9, max_length=9, n_experts=n_experts), **arguments)
    initialise(made, seed=0)
    with torch.no_grad():
        made.scores.weight.copy_(torch.eye(n_experts))
    return made


def routed(made, logits):
    return made.route(logits[None], Sequence(torch.zeros(1, len(logits), dtype=torch.long)))


def test_the_bias_chooses_and_has_no_part_in_the_weights():
    made = router(4, k=2)
    made.selection_bias.copy_(torch.tensor([-0.3, 0.0, 0.0, 0.35]))
    s = torch.tensor([[0.6, 0.5, 0.4, 0.1]])
    routing = routed(made, s.logit())
    weights = dict(zip(routing.experts[0].tolist(), routing.weights[0].tolist(), strict=True))
    assert weights == {1: pytest.approx(0.8333, abs=1e-4), 3: pytest.approx(0.1667, abs=1e-4)}
    torch.testing.assert_close(routing.probabilities, s / 1.6)


def test_weights_as_they_are_scaled_and_by_softmax():
    logits = torch.tensor([[0.5, -0.5, 2.0]])
    made = router(3, k=2, renormalise=False, scale=2.5)
    torch.testing.assert_close(routed(made, logits).weights, 2.5 * logits[:, [2, 0]].sigmoid())
    made = router(3, k=1, renormalise=False, scoring="softmax")
    torch.testing.assert_close(routed(made, logits).weights, logits.softmax(-1)[:, [2]])


def test_a_step_moves_the_bias_by_the_rate_towards_even_load():
    made = router(4, rate=0.01)
    made.after_step({"load": torch.tensor([0.5, 0.25, 0.25, 0.0])})
    torch.testing.assert_close(made.selection_bias, torch.tensor([-0.01, 0.0, 0.0, 0.01]))


@pytest.mark.parametrize("n", [3, 6, 7, 48])
def test_even_load_moves_nothing_whatever_is_rounded(n):
    made = router(n)
    counts = torch.full((n,), 10.0)
    made.after_step({"load": counts / counts.sum()})
    assert not made.selection_bias.any()


def test_the_bias_of_a_frozen_router_stays():
    made = router(2).requires_grad_(False)
    made.after_step({"load": torch.tensor([1.0, 0.0])})
    assert not made.selection_bias.any()


def test_the_bias_is_saved_and_is_no_parameter():
    made = router(4)
    assert made.state_dict()["selection_bias"].dtype == torch.float32
    assert [name for name, _ in made.named_parameters()] == ["scores.weight"]


def test_an_unbalanced_router_is_balanced_within_two_hundred_steps():
    """Scores sigmoid(N(0, 0.5^2) + what grows from 0 to 0.5 over 8 experts): 0.6 too much at first, under 0.1 then."""
    made, g = router(8, k=2, rate=0.001), torch.Generator().manual_seed(0)
    violations = []
    with torch.no_grad():
        for _ in range(1001):
            logits = 0.5 * torch.randn(4096, 8, generator=g) + torch.linspace(0, 0.5, 8)
            counts = torch.bincount(routed(made, logits).experts.flatten(), minlength=8)
            load = counts / counts.sum()
            violations.append(float(load.max() * 8 - 1))
            made.after_step({"load": load})
    assert violations[0] == pytest.approx(0.635, abs=0.13)  # one step of 8192 choices scatters by 0.03
    assert sum(violations[200:]) / 801 < 0.1


def test_one_expert_cannot_be_renormalised():
    with pytest.raises(ValueError, match="k is 1, renormalise true"):
        router(4, k=1)
    with pytest.raises(ValueError, match="k is 5, n_experts 4"):
        router(4, k=5)


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Two micro-batches of two rows of 16 tokens a step, for 4 steps."""
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"text {number} of a few words " * 8)
    mixture = {
        "use": "mixture_of_experts",
        "n_experts": 4,
        "expert": {"use": "mlp", "width": 8},
        "router": {"use": "bias_balanced", "rate": 0.01},
    }
    block = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 2}, "feed_forward": mixture}
    values = {
        "name": "balanced",
        "model": {"d_model": 16, "depth": 2, "pattern": ["layer"], "blocks": {"layer": block}},
        "data": {
            "corpus": {"use": "text_files", "path": str(folder)},
            "tokenizer": {"use": "byte"},
            "length": 16,
            "batch_tokens": 64,
            "micro_batch": 2,
        },
        "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2},
        "trainer": {"max_steps": 4},
        "checkpoint": {"every_steps": 2},
        "validation": {"every_steps": 4, "tokens": 64},
    }
    (tmp_path / "balanced.yaml").write_text(yaml.safe_dump(values))
    return bakeoff.recipe(values)


def biases(model):
    return [block.feed_forward.router.selection_bias for block in model.backbone.blocks]


def test_a_run_moves_biases_once_a_step_and_continues_with_them(recipe, tmp_path, monkeypatch):
    whole = fit(recipe, folder=tmp_path / "whole", progress=False)
    for bias in biases(whole.model):
        steps = bias / 0.01
        torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-4)
        assert 0 < bias.abs().max() <= 0.0401
    called = []
    after_step = BiasBalanced.after_step

    def dying(self, statistics):
        called.append(1)
        if len(called) == 6:  # two layers, step 3
            raise KeyboardInterrupt
        after_step(self, statistics)

    with monkeypatch.context() as patched, pytest.raises(BaseException):  # noqa: B017 (whatever ends a run)
        patched.setattr(BiasBalanced, "after_step", dying)
        fit(recipe, folder=tmp_path / "cut", progress=False)
    assert len(called) == 6
    continued = fit(recipe, folder=tmp_path / "cut", progress=False)
    loaded = load_run(tmp_path / "cut")
    for one, other, third in zip(biases(whole.model), biases(continued.model), biases(loaded.model), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_move_biases_by_the_load_of_both(recipe, tmp_path):
    alone = fit(recipe, folder=tmp_path / "alone", progress=False)
    ranks = ["trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu"]
    words = ["-m", "bakeoff", "fit", str(tmp_path / "balanced.yaml"), *ranks, "--folder", str(tmp_path / "two")]
    subprocess.run([sys.executable, *words], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=280)
    for one, other in zip(biases(alone.model), biases(load_run(tmp_path / "two").model), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
