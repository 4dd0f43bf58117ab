"""Whole comparisons of two tiny arms, as a user runs them."""

import csv
import json

import bakeoff
import pytest
from bakeoff.cli.main import main
from bakeoff.compare.local import Local
from bakeoff.compare.runner import compare
from bakeoff.compare.store import Store

LEAKY = '''
import torch
from bakeoff import register
from bakeoff.interfaces import Result, SequenceMixer


@register("sees_the_future")
class SeesTheFuture(SequenceMixer):
    """The mean of the whole row, what is to come included."""

    def __init__(self, context):
        super().__init__(context)

    def forward(self, x, sequence, state=None):
        return Result(x.mean(1, keepdim=True).expand_as(x))

    def flops(self, queries, keys):
        return 0
'''


PLAIN = {"machine": {"processor": "a", "devices": [], "threads": 1}, "unmeasured": {}}


@pytest.fixture
def no_trials(monkeypatch):
    """Any trial that is started fails the test."""
    monkeypatch.setattr(Local, "_start", lambda *_: pytest.fail("a trial was started"))


def test_a_comparison_from_nothing_to_its_report_and_again(tiny, tmp_path, monkeypatch, capsys):
    done = bakeoff.compare(tiny)
    text = capsys.readouterr().out
    assert "2 arms x 2 seeds = 4 trials" in text
    assert text.count("✓") == 4
    assert done.complete
    assert set(done.verdicts) == {"attention", "window"}
    assert done.verdicts["attention"].startswith("baseline: ")
    assert done.table[1]["bits_per_byte"] > 0
    assert done.folder.parent == (done.folder.parents[1] / "tiny")
    assert "attention" in done.report.read_text()
    assert "95 % interval" in (done.folder / "report.md").read_text()
    assert len(list(csv.DictReader((done.folder / "results.csv").open()))) == 4
    frame = done.to_frame()
    assert list(frame["seed"]) == [0, 0, 1, 1]
    assert frame["validation.bits_per_byte"].notna().all()

    monkeypatch.setattr(Local, "_start", lambda *_: pytest.fail("a trial was started"))
    (done.folder / "report.html").unlink()
    again = compare(tiny, progress=False)
    assert again.table == done.table
    assert done.report.exists()
    assert capsys.readouterr().out == ""

    (done.folder / "report.html").unlink()
    assert main(["report", str(done.folder)]) == 0
    assert done.report.exists()
    assert "bits per byte" in capsys.readouterr().out


def test_a_failing_arm_is_told_with_its_reason_and_the_others_go_on(tiny, capsys):
    tiny["arms"]["hopeless"] = {"optimizer.lr": 1e30}
    tiny["seeds"] = [0]
    done = compare(tiny)
    assert not done.complete
    assert done.verdicts["hopeless"].startswith("no result: stopped before optimizer step")
    assert done.verdicts["window"].startswith("one seed")
    text = capsys.readouterr().out
    assert "✗ hopeless, seed 0: stopped before optimizer step" in text
    assert "One seed: no interval" in text
    assert "stopped before optimizer step" in done.report.read_text()


def test_an_arm_that_sees_the_future_is_refused_and_shown(tiny, tmp_path, capsys):
    (tmp_path / "leaky.py").write_text(LEAKY)
    tiny["imports"] = ["leaky.py"]
    tiny["base"]["data"]["isolate_documents"] = False
    tiny["arms"]["leaky"] = {"model.blocks.layer.mixer": {"use": "sees_the_future"}}
    tiny["seeds"] = [0]
    done = compare(tiny)
    assert done.verdicts["leaky"].startswith("refused: not causal: layer 0")
    assert not done.complete
    assert [trial.arm for trial in done.results.trials] == ["attention", "window"]
    assert "refused before training" in done.report.read_text()


@pytest.mark.slow
def test_the_search_chooses_for_each_arm_and_its_seed_is_not_reported(tiny):
    tiny["tune"] = {"optimizer.lr": [1e-6, 3e-2]}
    tiny["seeds"] = [0]
    done = compare(tiny, progress=False)
    stages = [(t.stage, t.seed, t.point["optimizer.lr"]) for t in done.results.trials]
    assert stages.count(("tune", 1, 1e-6)) == stages.count(("tune", 1, 3e-2)) == 2
    assert stages[4:] == [("run", 0, 3e-2)] * 2
    assert [row["seeds"] for row in done.table] == [1, 1]
    assert "the greatest value tried" in done.report.read_text()


def test_dry_run_prints_the_plan_and_leaves_nothing(tiny, tmp_path, capsys, no_trials):
    before = sorted(tmp_path.iterdir())
    compare(tiny, dry_run=True)
    assert "4 trials" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


def test_failed_trials_are_run_again_only_when_asked(tiny, tmp_path, no_trials, monkeypatch):
    folder = tmp_path / "here"
    monkeypatch.setattr(Local, "run", lambda self, trials, progress: iter([]))
    compare(tiny, folder=folder, progress=False)
    store = Store(folder)
    for record in store.trials():
        store.finish(record.name, None, "out of memory")
    store.close()
    asked = []
    monkeypatch.setattr(Local, "run", lambda self, trials, progress: asked.append(len(trials)) or iter([]))
    assert compare(tiny, folder=folder, progress=False).verdicts["window"] == "no result: out of memory"
    assert asked == []
    compare(tiny, folder=folder, progress=False, retry=True)
    assert asked == [4]


def test_results_that_outlived_their_comparison_are_taken_in(tiny, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    monkeypatch.setattr(Local, "run", lambda self, trials, progress: iter([]))
    compare(tiny, folder=folder, progress=False)
    result = {"measures": {"validation.bits_per_byte": 3.5}, "curve": [], "seconds": 1.0, "code": ["x"], **PLAIN}
    names = sorted(path.name for path in (folder / "trials").iterdir())
    (folder / "trials" / names[0] / "result.json").write_text(json.dumps(result))
    asked = []
    monkeypatch.setattr(Local, "run", lambda self, trials, progress: asked.extend(t.name for t in trials) or iter([]))
    done = compare(tiny, folder=folder, progress=False)
    assert sorted(asked) == names[1:]
    assert [trial.name for trial in done.results.trials if trial.state == "done"] == names[:1]


def test_a_folder_takes_a_larger_comparison_and_keeps_what_it_has(tiny, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Local, "run", lambda self, trials, progress: asked.append(len(trials)) or iter([]))
    compare(tiny, folder=tmp_path / "here", progress=False)
    store = Store(tmp_path / "here")
    for record in store.trials():
        result = {"measures": {"validation.bits_per_byte": 3.0}, "curve": [], "seconds": 1.0, "code": ["x"], **PLAIN}
        store.finish(record.name, result, None)
    store.close()
    done = compare(tiny, {"seeds": [0, 1, 2]}, folder=tmp_path / "here", progress=False)
    assert asked == [4, 2]
    assert [row["seeds"] for row in done.table] == [2, 2]


def test_command_line_fails_with_one_message_for_what_is_not_a_comparison(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("model: {d_model: 8}\n")
    assert main(["compare", str(tmp_path / "recipe.yaml")]) == 2
    assert "no comparison" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no comparison" in capsys.readouterr().err
