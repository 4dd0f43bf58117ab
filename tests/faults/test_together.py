"""Two processes at one folder: the second says that it waits, and finds all done."""

import os
import subprocess
import sys

import pytest
import yaml

from ..compare.conftest import tiny_comparison
from .commands import texts


@pytest.fixture
def words(tmp_path):
    return texts(tmp_path / "words", lines=60)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return os.environ | {"OMP_NUM_THREADS": "1", "BAKEOFF_CACHE": str(tmp_path / "cache")}


def both(words, environment):
    """What two of the same command print, and how they end."""
    command = [sys.executable, "-m", "bakeoff", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]
    texts = [process.communicate(timeout=280)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], texts
    return texts


@pytest.mark.slow
def test_comparisons(words, environment, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny_comparison(words), sort_keys=False))
    texts = both(["compare", tmp_path / "tiny.yaml", "--folder", tmp_path / "here"], environment)
    assert sorted(text.count("✓") for text in texts) == [0, 4]
    assert sum("waiting until it ends" in text for text in texts) == 1


@pytest.mark.slow
def test_training(words, environment, tmp_path):
    values = tiny_comparison(words)["base"]
    values["trainer"] |= {"max_steps": 1500}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    texts = both(["fit", tmp_path / "tiny.yaml", "--folder", tmp_path / "run"], environment)
    assert sum("waiting until it ends" in text for text in texts) == 1
    assert sum("training in" in text for text in texts) == 1
    rows = (tmp_path / "run" / "curve.csv").read_text().splitlines()
    assert [int(row.partition(",")[0]) for row in rows[1:]] == list(range(1, 1501))


@pytest.mark.slow
def test_two_runs_prepare_their_data_in_one_cache(words, environment, tmp_path):
    values = tiny_comparison(words)["base"]
    values["trainer"] |= {"max_steps": 3}
    values["data"]["tokenizer"] = {"use": "bpe", "vocab_size": 300}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    both(["fit", tmp_path / "tiny.yaml"], environment)
    runs = sorted((tmp_path / "runs" / "tiny").iterdir())
    assert len({(run / "model.pt").read_bytes() for run in runs}) == 1
    assert len(list((tmp_path / "cache" / "tokens").glob("*/manifest.json"))) == 1
