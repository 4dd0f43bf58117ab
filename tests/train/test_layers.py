"""What layers tell of themselves, on record."""

import csv
import os

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Capabilities, FeedForward, Result
from bakeoff.registry import register
from bakeoff.train import fit, load_run
from bakeoff.train.layers import Layers
from bakeoff.train.module import TrainingModule

#: Of the tiny recipe: 2 micro-batches of 2 rows of 16 tokens.
TOKENS = 64


@register("counting")
class Counting(FeedForward):
    """Tells how many tokens it saw, how they fall on the first and second half of a row, and how often it learnt."""

    capabilities = Capabilities(documents=True, padding=True, state=True)

    def __init__(self, context):
        super().__init__(context)
        self.layer = context.layer
        self.register_buffer("steps", torch.zeros(()))

    def reset_parameters(self):
        self.steps.zero_()

    def forward(self, x, sequence, state=None):
        B, T, _ = x.shape
        halves = torch.tensor([B * (T // 2) * (self.layer + 1), B * (T - T // 2)], dtype=torch.float32)
        return Result(torch.zeros_like(x), state, {"tokens": torch.tensor(float(B * T)), "halves": halves})

    def finish_aux(self, sums):
        return {}, {"tokens": sums["tokens"], "shares": sums["halves"] / sums["tokens"], "steps": self.steps.clone()}

    def after_step(self, statistics):
        assert statistics["tokens"] == TOKENS
        self.steps += 1

    def flops(self, queries, keys):
        return 0


@pytest.fixture
def counting(tiny):
    return lambda **more: tiny(model__blocks__layer__feed_forward={"use": "counting"}, **more)


def test_each_row_of_the_curve_has_what_the_layers_told_at_its_step(counting, tmp_path):
    run = fit(counting(trainer__log_every_n_steps=3), folder=tmp_path, progress=False)
    assert [row["step"] for row in run.curve] == [3, 4, 6, 8]
    expected = [
        {"step": step, "layer": layer, "name": f"feed_forward.{name}", "index": index, "value": value}
        for step in (3, 4, 6, 8)
        for layer in (0, 1)
        for name, index, value in (
            ("tokens", None, TOKENS),
            ("shares", 0, 0.5 * (layer + 1)),
            ("shares", 1, 0.5),
            ("steps", None, step - 1),
        )
    ]
    assert run.layers == expected
    assert (tmp_path / "layers.csv").read_text().splitlines()[:3] == [
        "step,layer,name,index,value",
        "3,0,feed_forward.tokens,,64.0",
        "3,0,feed_forward.shares,0,0.5",
    ]


def test_loggers_get_what_is_one_number_and_its_mean_over_layers(counting, tmp_path):
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path / "logs")}}
    fit(counting(trainer__logger=logger), folder=tmp_path / "run", progress=False)
    (written,) = (tmp_path / "logs").rglob("metrics.csv")
    rows = list(csv.DictReader(written.open()))
    for name in ("layer_0.feed_forward.steps", "layer_1.feed_forward.steps", "layers.feed_forward.steps"):
        assert [float(row[name]) for row in rows] == list(range(8))
    assert not [name for name in rows[0] if "shares" in name]


def test_where_no_layer_tells_anything_there_is_no_file(tiny, tmp_path):
    run = fit(tiny(), folder=tmp_path, progress=False)
    assert not (tmp_path / "layers.csv").exists()
    assert run.layers == []


def test_rows_after_the_checkpoint_are_cut_back(counting, tmp_path, monkeypatch, in_child):
    step = TrainingModule.training_step

    def dying(self, batch, batch_idx):
        if self.clock.step == 5:
            os._exit(9)
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingModule, "training_step", dying)
        assert in_child(lambda: fit(counting(), folder=tmp_path, progress=False)) == 9
    assert max(row["step"] for row in Layers(tmp_path / "layers.csv").read()) == 5
    (tmp_path / "checkpoints").joinpath("step-4.ckpt").unlink()
    run = fit(counting(), folder=tmp_path, progress=False)
    steps = [row["step"] for row in run.layers if row["name"] == "feed_forward.steps" and row["layer"] == 0]
    assert steps == list(range(1, 9))


def test_rows_that_are_not_those_that_were_written_are_told(counting, tmp_path):
    fit(counting(), folder=tmp_path, progress=False)
    table = tmp_path / "layers.csv"
    table.write_text(table.read_text().replace("64.0", "65.0", 1))
    with pytest.raises(UserError, match=r"layers\.csv is damaged"):
        load_run(tmp_path, trust=True)
    for name in ("summary.json", "model.pt"):
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match=r"layers\.csv is damaged"):
        fit(counting(), folder=tmp_path, progress=False)


def test_a_table_replaces_the_rows_of_its_last_step(tmp_path):
    table = Layers(tmp_path / "layers.csv")
    assert table.mark() is None
    rows = [
        {"step": step, "layer": layer, "name": "x", "value": step + layer / 4} for step in (1, 2) for layer in (0, 1)
    ]
    table.replace(*rows[:2])
    mark = table.mark()
    table.replace(*rows[2:])
    table.replace(rows[2] | {"value": 9.0})
    assert [(row["step"], row["value"]) for row in table.read()] == [(1, 1.0), (1, 1.25), (2, 9.0)]
    again = Layers(table.path)
    again.resume(mark)
    assert [row["value"] for row in again.read()] == [1.0, 1.25]
    again.resume(None)
    assert not table.path.exists()
