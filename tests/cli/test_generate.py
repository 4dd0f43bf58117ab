"""The commands that open a run: generate and evaluate."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from bakeoff.cli.generate import chosen_sampler
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.evaluate import measures
from bakeoff.parts.samplers import Greedy, Sample
from bakeoff.recipe import Recipe, recipe
from bakeoff.train import fit

WORDS = "the quick brown fox jumps over the lazy dog and runs away from it all\n"


def small(folder: Path) -> Recipe:
    (folder / "text.txt").write_text(WORDS * 100)
    block = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 2}, "feed_forward": {"use": "mlp"}}
    return recipe(
        {
            "model": {"d_model": 16, "depth": 1, "pattern": ["layer"], "blocks": {"layer": block}},
            "data": {
                "corpus": {"use": "text_files", "path": str(folder / "text.txt")},
                "tokenizer": {"use": "byte"},
                "length": 32,
                "batch_tokens": 128,
                "cache": str(folder / "cache"),
            },
            "trainer": {"max_steps": 2, "accelerator": "cpu", "devices": 1},
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return fit(small(folder), folder=folder / "run", progress=False).folder


def test_text_follows_the_prompt(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["generate", str(run), "--prompt", "the quick", "--max-new-tokens", "4"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("the quick")
    assert main(["generate", str(run), "--prompt", "the quick", "--max-new-tokens", "4", "--stream"]) == 0
    assert capsys.readouterr().out == shown


def test_several_prompts_are_numbered(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["generate", str(run), "--prompt", "a", "--prompt", "the dog", "--max-new-tokens", "2"]) == 0
    lines = capsys.readouterr().out.split("--- ")
    assert [part[:3] for part in lines[1:]] == ["0\na", "1\nt"]
    assert main(["generate", str(run), "--prompt", "a", "--prompt", "b", "--stream"]) == 2
    assert "--stream shows one row; there are 2 prompts" in capsys.readouterr().err


def test_a_prompt_may_come_on_a_pipe(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the lazy\n"))
    assert main(["generate", str(run), "--max-new-tokens", "1"]) == 0
    assert capsys.readouterr().out.startswith("the lazy")


def test_the_seed_decides_what_is_drawn(run: Path, capsys: pytest.CaptureFixture[str]):
    def drawn(seed: str) -> str:
        words = ["--sampler", "temperature=2.0", "top_k=100", "--seed", seed, "--max-new-tokens", "20"]
        assert main(["generate", str(run), "--prompt", "x", *words]) == 0
        return capsys.readouterr().out

    assert drawn("1") == drawn("1")
    assert drawn("1") != drawn("2")


def test_samplers_are_named_by_words(tmp_path: Path):
    made = small(tmp_path)
    found = chosen_sampler(made, ["temperature=0.5", "top_k=3"])
    assert isinstance(found, Sample)
    assert (found.temperature, found.top_k) == (0.5, 3)
    assert isinstance(chosen_sampler(made, ["greedy"]), Greedy)
    own = made.override({"sampler": {"use": "sample", "temperature": 0.5, "min_p": 0.1}})
    found = chosen_sampler(own, ["temperature=0.7"])
    assert isinstance(found, Sample)
    assert (found.temperature, found.min_p) == (0.7, 0.1)
    with pytest.raises(UserError, match="did you mean 'temperature'"):
        chosen_sampler(made, ["temprature=1"])
    with pytest.raises(UserError, match="takes one name; there are greedy, sample"):
        chosen_sampler(made, ["greedy", "sample"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-new-tokens", "99"], "max_new_tokens is 99"),
        (["--sampler", "temperature=0"], "temperature is 0"),
        (["--device", "nowhere"], "--device nowhere"),
    ],
)
def test_slips_are_one_message_and_exit_code_2(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
):
    assert main(["generate", str(run), "--prompt", "x", *words]) == 2
    assert message in capsys.readouterr().err


def test_measures_are_printed_and_kept(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measures, "SECONDS", 0.05)
    assert main(["evaluate", str(run), "--measure", "validation", "decode", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "validation.bits_per_byte" in shown.out
    assert "measuring decode" in shown.err
    kept = json.loads((run / "evaluation.json").read_text())
    assert set(kept["measures"]) >= {"validation.bits_per_byte", "decode.tokens_per_second"}
    assert main(["evaluate", str(run), "--measure", "throughput"]) == 0
    later = json.loads((run / "evaluation.json").read_text())["measures"]
    assert later["validation.bits_per_byte"] == kept["measures"]["validation.bits_per_byte"]
    assert "throughput.tokens_per_second" in later
    assert not list(run.glob("*.tmp"))
    assert main(["evaluate", str(run), "--measure", "memry"]) == 2
    assert "did you mean 'memory'" in capsys.readouterr().err


def test_lengths_are_a_table_and_kept(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(run), "--lengths", "1x", "2x", "16", "--device", "cpu"]) == 0
    told = capsys.readouterr().out.splitlines()
    kept = json.loads((run / "evaluation.json").read_text())["measures"]
    assert told[0].split() == ["length", "bits", "per", "byte", "nats", "per", "token"]
    for name, line in zip(("1x", "2x", "16"), told[1:], strict=False):
        figures = [kept[f"loss_by_length.{kind}_{name}"] for kind in ("bits_per_byte", "nats_per_token")]
        assert line.split() == [name, *(f"{figure:.4f}" for figure in figures)]
    assert (
        told[4] == f"over the same {kept['loss_by_length.tokens']:.0f} targets at each length; 1x is 32 tokens in a row"
    )
    assert main(["evaluate", str(run), "--lengths", "1x", "--measure", "decode", "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("decode.tokens_per_second")
    assert "length  bits per byte" in told
    assert main(["evaluate", str(run), "--lengths", "x"]) == 2
    assert "lengths has 'x'" in capsys.readouterr().err


def test_a_task_is_measured_and_what_it_shows_is_a_page(run: Path, capsys: pytest.CaptureFixture[str]):
    probe = "{use: probe, corpus: {use: reviews, texts: 100, validation: 0.5}, shown: 1}"
    assert main(["evaluate", str(run), "--measure", probe, "--device", "cpu"]) == 0
    said = capsys.readouterr()
    label = "probe(corpus=reviews(texts=100, validation=0.5), shown=1)"
    assert f"measuring {label} …" in said.err
    kept = json.loads((run / "evaluation.json").read_text())["measures"]
    assert {name for name in kept if name.startswith("probe")} == {
        f"{label}.{figure}" for figure in ("accuracy", "unit_accuracy", "chance", "kept", "unit")
    }
    (page,) = run.glob("probe*.html")
    assert f"shown in {page}" in said.out
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count('<p class="shades">') == 2
    assert main(["evaluate", str(run), "--measure", "{use: probe, layer: 5}", "--device", "cpu"]) == 2
    assert "TextFiles has no labels" in capsys.readouterr().err
