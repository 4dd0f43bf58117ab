"""Killed again and again, whatever was begun ends as what was left in peace; `BAKEOFF_KILLS` says how often."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from bakeoff.compare.store import Store
from bakeoff.recipe import recipe
from bakeoff.train import fit
from bakeoff.train.curve import read_curve

from ..compare.conftest import tiny_comparison

#: Over training, data preparation and comparisons: a half, three tenths, a fifth.
KILLS = int(os.environ.get("BAKEOFF_KILLS", "40"))
#: Of a trial, so many that there is something to kill.
STEPS = 200


@pytest.fixture(autouse=True)
def _one_thread(tmp_path, monkeypatch):
    """Processes are forked from one that holds no thread pool."""
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def words(tmp_path):
    folder = tmp_path / "words"
    folder.mkdir()
    draw = random.Random(0)
    for i in range(40):
        lines = [f"In year {1800 + i * j} item {draw.randrange(999)} of {i} was lost." for j in range(600)]
        (folder / f"{i:02}.txt").write_text("\n".join(lines))
    return folder


class Victim:
    """A call in a process and process group of its own."""

    def __init__(self, call):
        self.process = multiprocessing.get_context("fork").Process(target=self._lead, args=(call,))
        self.process.start()

    @staticmethod
    def _lead(call):
        os.setsid()
        call()

    def killed_after(self, seconds):
        """Whether it still ran after so long and was killed; else it must have ended well."""
        self.process.join(seconds)
        if self.process.exitcode is not None:
            assert self.process.exitcode == 0
            return False
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # not yet the leader of a group
            self.process.kill()
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL


def chains(kills, draw, call, check, seconds):
    """Kill `call(place)` at random moments of its `seconds`, until `kills` are done; let each place end, and check it.

    `place` is a number: one is left when its call has ended, or has been killed five times.
    """
    done = place = 0
    while done < kills:
        for _ in range(5):
            if not Victim(lambda place=place: call(place)).killed_after(draw.uniform(0.0, seconds)):
                break
            done += 1
        call(place)
        check(place)
        place += 1
    return done


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [0, 1])
def test_training(words, tmp_path, workers):
    values = tiny_comparison(words)["base"]
    values["trainer"] |= {"max_steps": 60}
    values["data"] |= {"workers": workers, "micro_batch": 4}
    layer = values["model"]["blocks"]["layer"]
    layer["dropout"], layer["feed_forward"] = 0.1, {"use": "mixture_of_experts", "n_experts": 4}
    values |= {"checkpoint": {"every_steps": 4}}
    made = recipe(values)
    start = time.monotonic()
    whole = fit(made, folder=tmp_path / "whole", progress=False)
    seconds = time.monotonic() - start
    same = {name: value.clone() for name, value in whole.model.state_dict().items()}

    def call(place):
        fit(made, folder=tmp_path / str(place), progress=False)

    def check(place):
        again = torch.load(tmp_path / str(place) / "model.pt", weights_only=True)
        assert all(torch.equal(again[name], value) for name, value in same.items())
        assert curve(tmp_path / str(place)) == curve(tmp_path / "whole")
        told = [(tmp_path / name / "layers.csv").read_bytes() for name in (str(place), "whole")]
        assert told[0] == told[1]

    assert chains(KILLS // 4, random.Random(workers), call, check, seconds) >= KILLS // 4


def curve(folder):
    rows = read_curve(folder / "curve.csv")
    return [{name: cell for name, cell in row.items() if name != "seconds"} for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_data_preparation(words, tmp_path, monkeypatch):
    monkeypatch.setattr("bakeoff.data.writing.SETTLE", 2**16)
    monkeypatch.setattr("bakeoff.data.writing.BATCH", 2**14)
    values = tiny_comparison(words)["base"]
    values["data"] |= {"tokenizer": {"use": "bpe", "vocab_size": 400}}

    def call(place):
        recipe(values, {"data.cache": str(tmp_path / "caches" / str(place))}).build("data").prepare(progress=False)

    start = time.monotonic()
    call("whole")
    seconds = time.monotonic() - start

    def check(place):
        assert content(tmp_path / "caches" / str(place)) == content(tmp_path / "caches" / "whole")

    kills = KILLS * 3 // 10
    assert chains(kills, random.Random(2), call, check, seconds) >= kills


def content(folder):
    """All files of a cache, but for locks."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def compare(file, folder):
    words = [sys.executable, "-m", "bakeoff", "compare", str(file), "--folder", str(folder)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def last_start(folder):
    """When a trial last began to train, or 0."""
    return max((path.stat().st_mtime for path in folder.glob("trials/*/run/meta.json")), default=0.0)


def children(folder):
    """Processes that still work in a trial of a folder."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                log = os.readlink(f"/proc/{entry.name}/fd/1")
            except OSError:
                continue
            found += [int(entry.name)] if log.startswith(str(folder)) else []
    return found


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def found_out(folder):
    """Everything that a comparison found out, and what its trials have learnt, but for time."""
    store = Store(folder)
    rows = {r.name: (r.state, r.result["measures"], [p["loss"] for p in r.result["curve"]]) for r in store.trials()}
    store.close()
    weights = {}
    for trial in (folder / "trials").iterdir():
        held = torch.load(trial / "run" / "model.pt", weights_only=True)
        weights[trial.name] = {name: value.tolist() for name, value in held.items()}
    return rows, weights


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_comparisons(words, tmp_path):
    values = tiny_comparison(words)
    values["budget"]["tokens"] = 256 * STEPS
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    whole, draw, kills, place = tmp_path / "whole", random.Random(3), 0, 0
    start = time.monotonic()
    process = compare(file, whole)
    assert process.wait() == 0, process.stdout.read()
    seconds = time.monotonic() - start
    expected = found_out(whole)
    while kills < KILLS // 5:
        folder = tmp_path / f"killed{place}"
        for number in range(10):
            if kills == KILLS // 5 or not _killed(file, folder, draw, seconds if number % 2 else None):
                break
            kills += 1
            assert wait_until(lambda folder=folder: not children(folder), 60.0), "a trial outlived its comparison"
        assert compare(file, folder).wait() == 0
        assert found_out(folder) == expected
        place += 1


def _killed(file: Path, folder: Path, draw: random.Random, seconds: float | None) -> bool:
    """Kill a comparison at some moment of its whole time, or else soon after a trial has begun."""
    before = last_start(folder)
    process = compare(file, folder)
    if seconds is None:
        wait_until(lambda: last_start(folder) > before or process.poll() is not None, 300)
        seconds = 1.0
    try:
        process.wait(draw.uniform(0.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return process.returncode == -signal.SIGKILL
