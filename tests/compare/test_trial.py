import json
import os

import pytest
from bakeoff.compare.child import INTERVAL, Throttled, reason_of
from bakeoff.compare.folders import prepare_folder
from bakeoff.compare.plan import Plan
from bakeoff.compare.trial import run_trial
from bakeoff.errors import UserError
from bakeoff.recipe import comparison


@pytest.fixture
def trial(tiny):
    plan = Plan(comparison(tiny), prepare=True, progress=False)
    return plan.runs({arm.name: {} for arm in plan.arms})[0]


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_a_trial_leaves_measures_curve_and_where_it_ran(trial, tmp_path):
    said = []
    run_trial(prepare_folder(trial, tmp_path / "trial"), said.append)
    result = result_of(tmp_path / "trial")
    assert set(result["measures"]) == {"validation.bits_per_byte", "validation.nats_per_token", "validation.tokens"}
    assert [row["step"] for row in result["curve"]] == list(range(1, 11))
    assert [row["tokens"] for row in result["curve"]] == list(range(256, 2561, 256))
    assert [row["step"] for row in result["curve"] if row["bits_per_byte"] is not None] == [5, 10]
    assert result["curve"][-1]["bits_per_byte"] == pytest.approx(result["measures"]["validation.bits_per_byte"])
    assert len(result["code"]) == 1
    assert {"torch", "bakeoff", "python"} <= set(result["versions"])
    assert said[-1] == {"phase": "measuring validation"}


def test_a_half_trial_continues_from_its_checkpoint_to_the_same_numbers(trial, tmp_path):
    whole = prepare_folder(trial, tmp_path / "whole")
    run_trial(whole, lambda numbers: None)

    class Killed(BaseException):
        pass

    def kill(numbers):
        if numbers.get("step", 0) >= 6:
            raise Killed

    half = prepare_folder(trial, tmp_path / "half")
    with pytest.raises(Killed):
        run_trial(half, kill)
    assert not (half / "result.json").exists()
    steps = []
    prepare_folder(trial, half)
    run_trial(half, lambda numbers: steps.append(numbers.get("step", 99)))
    assert min(steps) > 1
    first, second = result_of(whole), result_of(half)
    assert first["measures"] == second["measures"]
    assert [row["loss"] for row in first["curve"]] == [row["loss"] for row in second["curve"]]


def test_a_trial_continued_by_other_code_names_both(trial, tmp_path):
    folder = prepare_folder(trial, tmp_path / "trial")
    (folder / "code.json").write_text('["an older one"]')
    run_trial(folder, lambda numbers: None)
    assert result_of(folder)["code"][0] == "an older one"
    assert len(result_of(folder)["code"]) == 2


def test_messages_are_held_back_for_a_quarter_second(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("bakeoff.compare.child.time.monotonic", lambda: now[0])
    said = []
    tell = Throttled(said.append)
    for i in range(100):
        now[0] = i * INTERVAL / 10
        tell({"step": i})
    assert [numbers["step"] for numbers in said] == list(range(0, 100, 10))


def test_reasons_are_one_line_and_users_errors_bare():
    assert reason_of(UserError("width 7:\n  must be 8")) == "width 7: must be 8"
    assert reason_of(RuntimeError("no")) == "RuntimeError: no"
    assert reason_of(MemoryError()) == "MemoryError"
    assert os.linesep not in reason_of(ValueError("a\nb"))


def test_a_trial_is_tried_at_tasks(tiny, tmp_path):
    recall = {"use": "mqar", "pairs": 2, "length": 8, "vocabulary": 16, "d_model": 16, "steps": 10, "batch": 4}
    measure = [recall, {"use": "probe", "texts": 40}, {"use": "loss_by_position", "tokens": 64}]
    plan = Plan(comparison({**tiny, "measure": measure}), prepare=True, progress=False)
    assert list(plan.document()["tasks"]) == [
        "mqar(batch=4, d_model=16, length=8, pairs=2, steps=10, vocabulary=16)",
        "probe(texts=40)",
        "loss_by_position(tokens=64)",
    ]
    said = []
    trial = plan.runs({arm.name: {} for arm in plan.arms})[0]
    run_trial(prepare_folder(trial, tmp_path / "trial"), said.append)
    result = result_of(tmp_path / "trial")
    label = "mqar(batch=4, d_model=16, length=8, pairs=2, steps=10, vocabulary=16)"
    assert 0 <= result["measures"][f"{label}.accuracy"] <= 1
    # keys and values of 8 tokens in float32, in two layers
    assert result["measures"][f"{label}.state_bytes"] == 2 * 2 * 8 * 16 * 4
    assert list(result["unmeasured"]) == ["probe(texts=40)"]
    assert "TextFiles has no labels" in result["unmeasured"]["probe(texts=40)"]
    assert list(result["shown"]) == list(result["drawn"]) == ["loss_by_position(tokens=64)"]
    assert {"step": 10, "total": 10} in [{k: n.get(k) for k in ("step", "total")} for n in said]
    assert len(result["code"]) == 1
    assert result["code"] == [plan.arms[0].code]
