from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Any

import pytest
from bakeoff import registry
from bakeoff.cli.main import main
from bakeoff.cli.plan import ranges
from bakeoff.evaluate.planning import plan_recipe
from bakeoff.parts.causal import Causal
from bakeoff.recipe import recipe

RECIPE = """
model:
  d_model: 64
  depth: 3
  pattern: [wide, narrow]
  blocks:
    wide:
      use: pre_norm
      mixer: {use: attention, n_heads: 4}
      feed_forward: {use: gated_mlp, width: 128}
    narrow:
      use: pre_norm
      mixer: {use: attention, n_heads: 4, window: 16}
      feed_forward: {use: gated_mlp, width: 128}
data: {corpus: {use: sotu}, tokenizer: {use: byte}, length: 64, batch_tokens: 1024, micro_batch: 4}
trainer: {max_steps: 10}
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def test_a_recipe_is_planned_as_it_trains(written: Path):
    planned = plan_recipe(recipe(written))
    assert (planned.vocabulary, planned.rows, planned.accumulation, planned.ranks) == (259, 4, 4, 1)
    assert [layer.numbers for layer in planned.model.layers] == [(0, 2), (1,)]
    assert planned.total_flops == planned.model.training_flops * 10 * 1024
    assert planned.memory.optimizer > 2 * planned.memory.gradients
    assert planned.notes == ()


def test_what_is_run_without_gradients_is_planned(written: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    plain = plan_recipe(recipe(written)).total_flops
    monkeypatch.setattr(Causal, "forwards", lambda self: 1.5)
    assert plan_recipe(recipe(written)).total_flops == plain * (3 + 1.5) / 3
    assert main(["plan", str(written), "--bandwidth", "100"]) == 0
    assert "three times the forward, and 1.5 forward without" in " ".join(capsys.readouterr().out.split())


def test_states_that_go_on_are_planned(written: Path):
    # an LSTM of 64 channels holds h and c in float32: 2 layers of 4 rows, in 4 micro-batches, before and after a step;
    # and of each lane length, last position and last document
    lstm = ["model.blocks.wide.mixer={use: lstm}", "model.pattern=[wide]", "model.depth=2"]
    plain, carried = (plan_recipe(recipe(written, [*lstm, f"trainer.stateful={on}"])).memory for on in (False, True))
    assert plain.states == 0
    assert carried.states == 2 * 4 * 4 * (2 * 2 * 64 * 4 + 3 * 8)
    assert carried.parameters == plain.parameters
    assert carried.peak > plain.peak


def test_precision_and_devices_change_the_plan(written: Path):
    full = plan_recipe(recipe(written)).memory
    mixed = plan_recipe(recipe(written, ["trainer.precision=bf16-mixed"])).memory
    assert mixed.parameters == full.parameters
    assert mixed.activations < full.activations
    assert plan_recipe(recipe(written, ["trainer.devices=2"])).accumulation == 2


def test_recomputation_is_told_apart(written: Path, capsys: pytest.CaptureFixture[str]):
    modes = ("none", "selective", "full")
    planned = [plan_recipe(recipe(written, [f"trainer.recompute={mode}"])) for mode in modes]
    none, selective, full = (each.memory.peak for each in planned)
    assert none > selective > full
    assert len({each.model.training_flops for each in planned}) == 1  # utilisation goes by this
    layers = sum(len(layer.numbers) * layer.whole.flops for layer in planned[0].model.layers)
    assert [each.recomputed for each in planned] == [0, 0, layers]
    assert main(["plan", str(written), "trainer.recompute=full", "--bandwidth", "100"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "and anew in backward" in shown
    assert "recompute: full" in shown


def test_lower_precision_holds_copies_in_float32(written: Path):
    full, low = (plan_recipe(recipe(written, [f"trainer.precision={p}"])).memory for p in ("32-true", "bf16-true"))
    assert low.parameters == full.parameters / 2
    assert low.gradients == full.gradients / 2
    assert low.optimizer == full.optimizer + full.parameters  # two moments, and the copy


def test_the_command_prints_every_part(written: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(written), "data.length=128", "--bandwidth", "100", "--batch", "8"]) == 0
    shown = capsys.readouterr().out
    for words in ("layer 0, 2", "attention", "gated_mlp", "head", "training memory", "6 N (1 + s / 6 d)", "8 rows"):
        assert words in shown
    assert "100 GB/s (as given)" in " ".join(shown.split())


def test_active_parameters_stand_beside_the_total(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    part = """
from bakeoff import register
from bakeoff.parts.feed_forwards.mlp import MLP


@register("half_idle")
class HalfIdle(MLP):
    def idle(self):
        return sum(parameter.numel() for parameter in self.parameters()) // 2
"""
    (tmp_path / "half_idle.py").write_text(part)
    assert main(["plan", str(written), "--bandwidth", "100"]) == 0
    assert "active parameters" not in capsys.readouterr().out
    changed = [f"imports=[{tmp_path}/half_idle.py]", "model.blocks.wide.feed_forward={use: half_idle, width: 128}"]
    assert main(["plan", str(written), *changed, "--bandwidth", "100"]) == 0
    shown = capsys.readouterr().out
    total, active = (
        int(re.search(rf"^{name} +([\d,]+)", shown, re.M)[1].replace(",", ""))
        for name in ("parameters", "active parameters")
    )
    assert total - active == 2 * 64 * 128  # layers 0 and 2, half of two matrices each


def test_every_arm_of_a_comparison_is_planned(written: Path, capsys: pytest.CaptureFixture[str]):
    compared = written.with_name("compared.yaml")
    compared.write_text(
        f"base: {written.name}\nbudget: {{tokens: 1024}}\narms: {{all: {{}}, shallow: {{model.depth: 1}}}}\n"
    )
    assert main(["plan", str(compared), "--bandwidth", "100"]) == 0
    shown = capsys.readouterr().out
    first, second = shown.split("shallow ─")
    assert "all ─" in first
    assert "layer 0, 2" in first
    assert "layer 0, 2" not in second


def test_a_part_that_declares_nothing_shows_a_dash_and_a_note(written: Path, capsys: pytest.CaptureFixture[str]):
    script = written.with_name("mine.py")
    script.write_text(
        "from bakeoff import register\n"
        "from bakeoff.interfaces import Result, SequenceMixer\n\n"
        "@register('silent_mixer')\n"
        "class SilentMixer(SequenceMixer):\n"
        "    def forward(self, x, sequence, state=None):\n"
        "        return Result(x)\n"
    )
    silent = [f"imports=[{script}]", "model.blocks.narrow.mixer={use: silent_mixer}"]
    assert main(["plan", str(written), *silent, "--bandwidth", "100"]) == 0
    shown = capsys.readouterr().out
    assert "SilentMixer declares no cost" in " ".join(shown.split())
    assert any("silent_mixer" in line and "–" in line for line in shown.splitlines())


PEEKING = """
from bakeoff import register
from bakeoff.interfaces import Result, SequenceMixer

@register('peeking_mixer')
class PeekingMixer(SequenceMixer):
    def forward(self, x, sequence, state=None):
        marks = CONDITION
        return Result(-x if marks is not None and marks.sum() > 0 else x)
    def flops(self, queries, keys):
        return 0
"""


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("sequence.documents", "training memory is that of rows of one document; with several, PeekingMixer cannot"),
        ("x", "training memory is not known: PeekingMixer cannot run on shapes alone"),
    ],
)
def test_a_part_that_looks_at_values_is_planned_as_far_as_can_be(written: Path, condition: str, told: str):
    script = written.with_name("peeking.py")
    script.write_text(PEEKING.replace("CONDITION", condition))
    peeking = [f"imports=[{script}]", "model.blocks.narrow.mixer={use: peeking_mixer}"]
    planned = plan_recipe(recipe(written, peeking))
    assert (planned.memory is None) == (condition == "x")
    assert told in planned.notes[-1]
    assert "keeps no state" in planned.notes[0]


def test_a_model_larger_than_the_machine_is_planned(written: Path, capsys: pytest.CaptureFixture[str]):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    large = ["model.d_model=16384", "model.depth=10", "data.length=2048", "data.batch_tokens=131072"]
    planned = plan_recipe(recipe(written, [*large, "model.blocks.wide.feed_forward.width=81920"]))
    assert planned.model.parameters.total > 30e9
    assert planned.memory.peak > 400e9
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 300e6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "0"], "--batch is 0; it must be positive"),
        (["model.dmodel=3"], "dmodel"),
    ],
)
def test_slips_are_one_message_and_exit_code_2(
    written: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
):
    assert main(["plan", str(written), *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_layer_numbers_are_shown_as_spans():
    assert ranges((0, 1, 2, 4, 6, 7)) == "0-2, 4, 6-7"


def test_layouts_are_ranked_the_best_first(written: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(written), "--devices", "8", "--gpu", "a100"]) == 0
    shown = capsys.readouterr().out
    assert "8 x A100 SXM 80 GB" in shown
    best = re.search(r"best: (.+), MFU at most", shown)[1]
    lines = re.search(r"trainer:\n  strategy: {use: mesh, (.+)}\n  devices: 8\n  num_nodes: 1\n", shown)
    assert lines[1].replace(":", "").replace(", ", " x ") == best
    assert "left out tensor 8: n_kv_heads is 4" in shown
    for words in ("layers 0, 2", "layer 1", "selective", "compute/comm", "ring block", "data sheets"):
        assert words in shown


def test_layouts_over_nodes(written: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(written), "--devices", "16"]) == 0
    shown = capsys.readouterr().out
    assert "16 x H100 SXM 80 GB in 2 nodes of 8" in shown
    assert "  devices: 8\n  num_nodes: 2\n" in shown


def test_one_device_is_planned_too(written: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(written), "--gpu", "h200", "trainer.recompute=full"]) == 0
    shown = capsys.readouterr().out
    assert "1 x H200 SXM 141 GB" in shown
    assert "  devices: 1\n  num_nodes: 1\n  recompute: full\n" in shown
    assert "strategy" not in shown


def test_a_model_that_fits_nowhere_is_said_to_be_too_large(written: Path, capsys: pytest.CaptureFixture[str]):
    large = ["model.d_model=16384", "model.depth=10", "model.blocks.wide.feed_forward.width=81920"]
    assert main(["plan", str(written), *large, "--devices", "2", "--gpu", "tpu_v5e"]) == 0
    shown = capsys.readouterr().out
    assert "no layout fits" in shown
    assert " 4/0 " in shown  # micro-batches of 4 rows; none would fit
    assert "trainer:" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devices", "8", "--gpu", "h1000"], "no device is called 'h1000'; did you mean h100"),
        (["--devices", "9", "--gpu", "h100"], "9 devices on 2 nodes"),
        (["--devices", "16", "--nodes", "1"], "a node holds at most 8"),
        (["--devices", "-1"], "--devices is -1; it must be positive"),
        (["--nodes", "2"], "give --devices"),
        (["--devices", "8", "trainer.precision=transformer-engine"], "not planned for trainer.precision"),
    ],
)
def test_slips_in_what_layouts_are_for(
    written: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
):
    assert main(["plan", str(written), *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
