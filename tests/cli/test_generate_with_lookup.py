"""A run whose model reads what is retrieved looks things up as it generates, and says what it cannot open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bakeoff import load_run
from bakeoff.cli.main import main
from bakeoff.data.retrieval import Lookup
from bakeoff.errors import UserError
from bakeoff.evaluate import MEASURES, Measured, measures
from bakeoff.model.generate import generate
from bakeoff.recipe import Recipe, recipe
from bakeoff.train import fit

CHUNK = 8
PROMPT = "the quick brown fox jumps over"
WORDS = "the quick brown fox jumps over the lazy dog and runs away from it all\n"


def small(folder: Path) -> Recipe:
    (folder / "text.txt").write_text(WORDS * 60)
    block = {
        "use": "retro",
        "n_heads": 2,
        "chunk": CHUNK,
        "encoder_depth": 1,
        "mixer": {"use": "attention", "n_heads": 2},
        "feed_forward": {"use": "mlp"},
    }
    return recipe(
        {
            "model": {"d_model": 16, "depth": 1, "pattern": ["layer"], "blocks": {"layer": block}},
            "data": {
                "corpus": {"use": "text_files", "path": str(folder / "text.txt")},
                "tokenizer": {"use": "byte"},
                "length": 64,
                "batch_tokens": 128,
                "cache": str(folder / "cache"),
                "retrieval": {"retriever": {"use": "flat", "embedder": {"use": "static"}}, "chunk": CHUNK},
            },
            "trainer": {"max_steps": 2, "accelerator": "cpu", "devices": 1, "enable_progress_bar": False},
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return fit(small(folder), folder=folder / "run", progress=False).folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks each search was for."""
    counts: list[int] = []
    search = Lookup.neighbours

    def counted(self, chunks, exclude=None):  # type: ignore[no-untyped-def]
        counts.append(len(chunks))
        return search(self, chunks, exclude)

    monkeypatch.setattr(Lookup, "neighbours", counted)
    return counts


def test_each_chunk_is_looked_up_as_it_is_completed(run: Path, asked: list[int]):
    opened = load_run(run)
    text = opened.generate([PROMPT], max_new_tokens=20)
    # 30 bytes of prompt are three whole chunks; the next end with bytes 32, 40 and 48 of 50
    assert len(PROMPT) == 30
    assert asked == [3, 1, 1, 1]
    same = generate(opened.model, opened.tokenizer, [PROMPT], max_new_tokens=20, lookup=opened.data.lookup())
    assert text == same


def test_without_a_lookup_nothing_is_searched(run: Path, asked: list[int], capsys: pytest.CaptureFixture[str]):
    assert main(["generate", str(run), "--prompt", PROMPT, "--max-new-tokens", "4", "--no-lookup"]) == 0
    assert asked == []
    assert main(["generate", str(run), "--prompt", PROMPT, "--max-new-tokens", "4"]) == 0
    assert asked == [3, 1]
    assert capsys.readouterr().out.count(PROMPT) == 2


def test_decoding_is_measured_with_what_it_looks_up(run: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measures, "SECONDS", 0.05)
    opened = load_run(run)
    measured = Measured.of(opened.model, opened.data, opened.recipe)
    assert MEASURES["decode"](measured)["tokens_per_second"] > 0
    assert asked[0] == 32 // CHUNK  # of a prompt of half the length


@pytest.fixture
def gone(run: Path) -> Iterator[Path]:
    """The run while neither its texts nor what was made of them are there."""
    hidden = {run.parent / name: run.parent / f"hidden_{name}" for name in ("cache", "text.txt")}
    for place, away in hidden.items():
        place.rename(away)
    yield run
    for place, away in hidden.items():
        away.rename(place)


def test_a_database_that_cannot_be_opened_is_told(gone: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["generate", str(gone), "--prompt", PROMPT, "--max-new-tokens", "2"]) == 2
    said = capsys.readouterr().err
    assert "looks things up in cannot be opened" in said
    assert "text.txt" in said
    assert "--no-lookup" in said
    opened = load_run(gone)
    with pytest.raises(UserError, match="lookup=None"):
        opened.generate([PROMPT])
    assert opened.generate([PROMPT], max_new_tokens=2, lookup=None)
