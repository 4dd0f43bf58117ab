"""Measures leave the model as it is, and give figures that can be checked otherwise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate import MEASURES, Measured, measure, measures, peak
from bakeoff.evaluate.stepping import TrainingSteps
from bakeoff.interfaces import Result, SequenceMixer
from bakeoff.interfaces.state import tensors
from bakeoff.model.memory import step_memory
from bakeoff.recipe import recipe

WORDS = "the quick brown fox jumps over the lazy dog and runs away from it all\n"


def trained(folder: Path, mixer: dict[str, Any] | None = None, **changes: Any) -> Measured:
    (folder / "text.txt").write_text(WORDS * 200)
    block = {"use": "pre_norm", "mixer": mixer or {"use": "attention", "n_heads": 2}, "feed_forward": {"use": "mlp"}}
    made = recipe(
        {
            "model": {"d_model": 32, "depth": 2, "pattern": ["layer"], "blocks": {"layer": block}},
            "data": {
                "corpus": {"use": "text_files", "path": str(folder / "text.txt")},
                "tokenizer": {"use": "byte"},
                "length": 64,
                "batch_tokens": 512,
                "micro_batch": 4,
                "cache": str(folder / "cache"),
            },
            "trainer": {"max_steps": 1},
        },
        changes,
    )
    data = made.build("data").prepare(progress=False)
    model = made.build("model", vocab_size=data.vocab_size).initialise(made.seed_of("initialisation"))
    return Measured.of(model, data, made)


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return trained(tmp_path)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "SECONDS", 0.1)


def test_all_measures_leave_the_model_and_random_numbers_alone(measured: Measured):
    before = {name: value.clone() for name, value in measured.model.state_dict().items()}
    measured.model.train()
    drawn = torch.get_rng_state()
    found = measure(measured)
    assert {key.partition(".")[0] for key in found} == set(MEASURES)
    assert all(math.isfinite(value) and value > 0 for value in found.values())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, before[name]) for name, value in measured.model.state_dict().items())
    assert all(parameter.grad is None for parameter in measured.model.parameters())
    assert measured.model.training


def test_validation_of_a_uniform_model_is_eight_bits_a_byte_and_its_reserved_ids(measured: Measured):
    with torch.no_grad():
        for parameter in measured.model.parameters():
            parameter.zero_()
    found = MEASURES["validation"](measured)
    assert found["nats_per_token"] == pytest.approx(math.log(259), rel=1e-6)
    # one target in each document is its end, which stands for no byte
    assert found["bits_per_byte"] >= math.log2(259)
    assert found["tokens"] == pytest.approx(len(WORDS) * 200 * 0.1, rel=0.05)


def test_validation_reads_as_much_as_the_recipe_says(tmp_path: Path):
    assert MEASURES["validation"](trained(tmp_path, **{"validation.tokens": 128}))["tokens"] == 128


def test_a_step_is_a_whole_optimizer_step_on_training_rows(measured: Measured):
    steps = TrainingSteps(measured)
    before = [parameter.detach().clone() for parameter in steps.model.parameters()]
    steps.step()
    assert (steps.accumulation, steps.tokens) == (2, 512)
    assert any(not torch.equal(a, b) for a, b in zip(before, steps.model.parameters(), strict=True))
    assert steps.beside == sum(p.nbytes for p in measured.model.parameters())


def test_steps_are_taken_in_the_recipes_precision(tmp_path: Path):
    steps = TrainingSteps(trained(tmp_path, **{"trainer.precision": "bf16-true"}))
    steps.step()
    assert {parameter.dtype for parameter in steps.model.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in steps.measured.model.parameters()} == {torch.float32}


def test_states_go_on_where_they_do_in_training(tmp_path: Path):
    measured = trained(tmp_path, {"use": "lstm"}, **{"trainer.stateful": True})
    steps = TrainingSteps(measured)
    steps.step()
    first = list(tensors(steps.carried.states[1]))
    steps.step()
    assert all(int(length) == 128 for number in (0, 1) for length in steps.carried.states[number].past.length)
    assert any(not torch.equal(a, b) for a, b in zip(first, tensors(steps.carried.states[1]), strict=True))
    forgetful = trained(tmp_path, {"use": "lstm"})
    for each in (measured, forgetful):
        each.model.load_state_dict(steps.model.state_dict())
    costs = [MEASURES["validation"](each) for each in (measured, forgetful)]
    assert costs[0]["tokens"] == costs[1]["tokens"]
    assert costs[0]["nats_per_token"] != costs[1]["nats_per_token"]
    assert math.isfinite(MEASURES["memory"](measured)["peak_bytes"])


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measures, "time", clock)
    return clock


def test_throughput_divides_tokens_by_the_median_step(
    measured: Measured, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(TrainingSteps, "step", lambda self: clock.wait(0.02))
    assert MEASURES["throughput"](measured)["tokens_per_second"] == pytest.approx(512 / 0.02)


def test_the_median_is_of_several_steps_after_one_to_warm_up(clock: Clock):
    durations = iter([0.2, 0.01, 0.01, 0.05, 0.01])
    found = measures.median_time(lambda: clock.wait(next(durations)), torch.device("cpu"), most=4)
    assert found == pytest.approx(0.01)


def test_decoding_goes_on_to_the_models_length(measured: Measured, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measures, "SECONDS", 10.0)
    lengths: list[int] = []
    forward = measured.model.backbone.forward
    measured.model.backbone.forward = lambda s, state: lengths.append(s.length) or forward(s, state)  # type: ignore
    MEASURES["decode"](measured)
    assert lengths[0] == 32
    assert lengths[1:] == [1] * 32


class Forgetful(SequenceMixer):
    def forward(self, x: torch.Tensor, sequence: Any, state: Any = None) -> Result:
        return Result(x)


def test_a_model_that_cannot_decode_is_refused_by_name(measured: Measured):
    measured.model.backbone.layers[0].mixer = Forgetful(measured.model.context)
    with pytest.raises(CapabilityError, match="Forgetful keeps no state"):
        MEASURES["decode"](measured)


def test_unknown_measures_are_refused_before_any_is_taken(measured: Measured):
    with pytest.raises(UserError, match="no measure or task is called 'memry'; did you mean 'memory'"):
        measure(measured, ["validation", "memry"])


# --- peaks -----------------------------------------------------------------------------------------------------------


def allocate_64_mib() -> None:
    torch.ones(2**24)


@pytest.mark.skipif(not peak._CLEAR.exists(), reason="no /proc")
def test_resident_peak_sees_what_is_freed_again():
    before, kind = peak.peak_bytes(lambda: None, torch.device("cpu"))
    if kind != "resident":
        pytest.skip("the high-water mark cannot be reset here")
    after, _ = peak.peak_bytes(allocate_64_mib, torch.device("cpu"))
    again, _ = peak.peak_bytes(lambda: None, torch.device("cpu"))
    assert 0.9 * 2**26 < after - before < 1.2 * 2**26
    assert abs(again - before) < 2**23


def test_tensors_are_counted_where_the_mark_cannot_be_reset(measured: Measured, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peak, "reset_high_water", lambda: False)
    held = torch.ones(1000)
    assert peak.peak_bytes(lambda: torch.ones(250), torch.device("cpu"), held) == (5000.0, "tensors")
    found = MEASURES["memory"](measured)["peak_bytes"]
    steps = TrainingSteps(measured)
    planned = step_memory(
        steps.model, measured.objective, measured.recipe.build("optimizer"), next(steps.batches), accumulate=True
    )
    assert found == pytest.approx(planned.peak, rel=0.05)
