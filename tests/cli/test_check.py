"""`bakeoff check`: schema, capabilities, laws and memory; slips are one message and exit code 2."""

import subprocess
import sys

import pytest
from bakeoff.cli.main import main

RECIPE = """\
imports: [{script}]
model:
  d_model: 16
  depth: 1
  pattern: [layer]
  blocks:
    layer: {{use: pre_norm, mixer: {{use: {mixer}}}, feed_forward: {{use: mlp, width: 32}}}}
data:
  corpus: {{use: text_files, path: {folder}}}
  tokenizer: {{use: byte}}
  length: 16
  batch_tokens: 64
  isolate_documents: false
trainer: {{max_steps: 2}}
"""
SCRIPT = """\
from bakeoff import register
from bakeoff.interfaces import Result, SequenceMixer


@register("{mixer}")
class Mixer(SequenceMixer):
    def forward(self, x, sequence, state=None):
        return Result({what}, state)
"""


@pytest.fixture
def made(tmp_path):
    """A recipe whose mixer computes the given expression of `x`."""

    def write(mixer, what):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / "a.txt").write_text("some words\n" * 50)
        script = tmp_path / f"{mixer}.py"
        script.write_text(SCRIPT.format(mixer=mixer, what=what))
        recipe = tmp_path / f"{mixer}.yaml"
        recipe.write_text(RECIPE.format(script=script.name, mixer=mixer, folder=tmp_path / "texts"))
        return recipe

    return write


def test_each_check_is_a_line(made, capsys):
    assert main(["check", str(made("check_scales", "2 * x"))]) == 0
    said = capsys.readouterr().out
    assert "check_scales" in said.splitlines()[0]
    for line in ("schema        ok: byte, causal", "capabilities  ok", "laws          ok: 1 causality", "memory  "):
        assert line in said


def test_a_broken_law_is_an_error_that_names_the_part(made, capsys):
    assert main(["check", str(made("check_leaks", "x.flip(1)"))]) == 2
    said = capsys.readouterr().err
    assert "causality" in said
    assert "mixer" in said


def test_arms_of_a_comparison_are_checked_one_by_one(made, tmp_path, capsys):
    base = made("check_arms", "3 * x")
    compared = tmp_path / "compared.yaml"
    compared.write_text(f"base: {base.name}\narms: {{a: {{}}, b: {{model.depth: 2}}}}\nbudget: {{tokens: 128}}\n")
    assert main(["check", str(compared)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "compared: a comparison of 2 arms, 3 seeds each"
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["compared:", "a", "b"]
    assert main(["check", str(compared), "arms.b.model.dpth=2"]) == 2
    assert "arm b: model.dpth (override)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("typo.yaml", "modl: {}\n", "typo.yaml:1): a recipe has no section 'modl'; did you mean 'model'?"),
        ("words.yaml", "just words\n", "words.yaml: holds one value"),
        ("broken.yaml", "a: [1\n", "is not YAML"),
        ("loop.yaml", "extends: loop.yaml\n", "extends goes in a circle: "),
    ],
)
def test_slips_are_one_message_and_exit_code_2(tmp_path, capsys, name, text, said):
    (tmp_path / name).write_text(text)
    assert main(["check", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_checking_imports_no_lightning(made):
    code = f"""
import sys
from bakeoff.cli.main import main
assert main(["check", {str(made("check_light", "x"))!r}]) == 0
assert not [name for name in ("lightning", "transformers", "torchmetrics") if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
