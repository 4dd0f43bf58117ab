"""Associative recall: what is trained, what is counted, and that attention learns it and a short memory does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.evaluate import asked
from bakeoff.evaluate.tasks.mqar import MQAR, accuracy
from bakeoff.interfaces import Result
from bakeoff.interfaces.state import nbytes
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.positions.learned import LearnedPosition
from torch import nn

TINY = {"pairs": 2, "length": 8, "vocabulary": 16, "d_model": 16, "batch": 4, "held_out": 16, "steps": 3}


class Searches(nn.Module):
    """Answers each token with the one that follows where it first stood; of every other row, wrongly."""

    layers = ()

    def __init__(self):
        super().__init__()
        self.embedding = torch.zeros(1)

    def forward(self, sequence):
        tokens = sequence.tokens
        first = (tokens[:, :, None] == tokens[:, None, :]).int().argmax(-1)
        answers = tokens.gather(1, (first + 1).clamp_max(tokens.shape[1] - 1))
        answers[1::2] = 0
        return Result(nn.functional.one_hot(answers, 256).float())


def test_accuracy_is_the_share_of_queries_that_get_their_value():
    model = nn.Module()
    model.backbone, model.head = Searches(), nn.Identity()
    examples = next(MQAR()._drawn(SimpleNamespace(seed_of=lambda purpose: 0), "held out", 6))
    assert accuracy(model, examples, batch=4) == 0.5


def test_the_small_model_has_the_mixers_alone_and_learned_positions(untrained):
    model = MQAR().untrained(untrained().recipe)
    assert (model.context.d_model, model.context.vocab_size, model.context.max_length) == (64, 256, 64)
    assert [type(block.mixer) for block in model.backbone.layers] == [Attention, Attention]
    assert all(block.feed_forward is None and block.mixer.position is None for block in model.backbone.layers)
    assert isinstance(model.backbone.position, LearnedPosition)
    assert MQAR().untrained(untrained({"use": "lstm"}).recipe).backbone.position is None


@pytest.mark.parametrize(
    ("pattern", "depth", "names"),
    [
        (["a"], 2, ["a", "a"]),
        (["a", "f", "b", "b"], 2, ["a", "b", "b"]),
        ({"first": ["b"], "repeat": ["a"]}, 1, ["b", "a"]),
        ({"first": ["f"], "repeat": ["a", "b"]}, 5, ["a", "b", "a", "b", "a"]),
    ],
)
def test_the_pattern_is_kept_at_least_once_through(untrained, pattern, depth, names):
    blocks = {
        "model.blocks.a": {
            "use": "pre_norm",
            "mixer": {"use": "lstm"},
            "feed_forward": "${model.blocks.f.feed_forward}",
        },
        "model.blocks.b": {"use": "pre_norm", "mixer": {"use": "min_gru", "width": 24}, "feed_forward": None},
        "model.blocks.f": {"use": "pre_norm", "mixer": None, "feed_forward": {"use": "mlp"}},
        "model.pattern": pattern,
        "model.depth": 4,
    }
    model = MQAR(depth=depth).untrained(untrained(**blocks).recipe)
    assert model.backbone.names == names
    assert all(block.feed_forward is None for block in model.backbone.layers)
    assert {block.mixer.width for block in model.backbone.layers if hasattr(block.mixer, "width")} <= {64, 24}


def test_a_model_that_does_not_fit_is_told_with_the_arguments(untrained):
    measured = untrained({"use": "attention", "n_heads": 16}, **{"model.blocks.layer.use": "pre_norm"})
    with pytest.raises(UserError, match=r"mqar trains a small model .* d_model 24 .*n_heads"):
        MQAR(d_model=24).untrained(measured.recipe)
    alone = {"model.blocks.layer.mixer": None}
    with pytest.raises(UserError, match="no block of the model has a mixer"):
        MQAR().untrained(untrained(**alone).recipe)


def test_state_bytes_are_those_of_an_example(untrained):
    (task,) = asked([{"use": "mqar", **TINY}])
    found = task.answer(untrained({"use": "lstm"})).figures
    # two layers, h and c of 16 channels in float32
    assert next(value for name, value in found.items() if name.endswith("state_bytes")) == 2 * 2 * 16 * 4
    attention = MQAR(**TINY)
    with torch.no_grad():
        state = attention.untrained(untrained().recipe).empty_state(1, 8)
    kept = attention.measure(untrained(), lambda numbers: None).figures["state_bytes"]
    assert kept == nbytes(state.layers) == 2 * 2 * 8 * 16 * 4


def test_seeds_decide_and_progress_tells_the_time_that_is_left(untrained):
    (task,) = asked([{"use": "mqar", **TINY, "steps": 20, "learning_rates": [1e-3, 1e-2]}])
    said = []
    first, again = task.answer(untrained(), said.append), task.answer(untrained())
    other = task.answer(untrained(seed=1))
    assert first == again != other
    steps = [numbers for numbers in said if "step" in numbers]
    assert [(numbers["step"], numbers["total"]) for numbers in steps] == [(10, 40), (20, 40), (30, 40), (40, 40)]
    assert steps[-1]["seconds_left"] == 0.0
    assert all(numbers["phase"].startswith("measuring mqar(") for numbers in said)


def test_it_can_be_stopped_at_any_step(untrained):
    def stop(numbers):
        if numbers.get("step") == 10:
            raise KeyboardInterrupt

    (task,) = asked([{"use": "mqar", **TINY, "steps": 10_000}])
    measured = untrained()
    drawn = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        task.answer(measured, stop)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_the_better_of_two_learning_rates_is_reported_and_a_goal_ends_the_search(untrained, monkeypatch):
    tried = []

    def train(self, model, rate, drawn, tell):
        tried.append(rate)
        model.backbone.embedding.data.fill_(rate)
        return {1e-3: 0.2, 1e-2: 0.7, 0.1: 0.995}.get(rate, 0.1)

    monkeypatch.setattr(MQAR, "train", train)
    monkeypatch.setattr(
        "bakeoff.evaluate.tasks.mqar.accuracy", lambda model, *rest: float(model.backbone.embedding.detach()[0, 0])
    )
    measured = untrained()
    best = MQAR(**TINY, learning_rates=[1e-3, 1e-2, 1e-1, 1.0]).measure(measured, lambda numbers: None)
    assert (tried, best.figures["accuracy"]) == ([1e-3, 1e-2, 0.1], pytest.approx(0.1))
    best = MQAR(**TINY, learning_rates=[1e-2, 1e-3]).measure(measured, lambda numbers: None)
    assert best.figures["accuracy"] == pytest.approx(1e-2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("mixer", "steps", "least", "most"),
    [({"use": "attention", "n_heads": 1}, 1500, 0.991, 1.0), ({"use": "gated_convolution"}, 700, 0.0, 0.5)],
    ids=lambda value: value["use"] if isinstance(value, dict) else "",
)
def test_attention_learns_it_and_a_short_convolution_does_not(untrained, mixer, steps, least, most):
    # the order is published (Arora et al., 2023, figure 2), the size is a reduced one
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that sums have one order, and busy neighbours do not hold up a second thread
    try:
        found = MQAR(goal=0.995, steps=steps).measure(untrained(mixer), lambda numbers: None).figures["accuracy"]
    finally:
        torch.set_num_threads(threads)
    assert least <= found <= most
