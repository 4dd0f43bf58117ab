"""A disk that is full at some byte: one message with path and bytes; once there is room, all goes on as before."""

import subprocess

import pytest
import torch
import yaml
from bakeoff.compare.store import Store
from bakeoff.recipe import recipe
from bakeoff.train import fit

from ..compare.conftest import tiny_comparison
from .commands import Commands, texts

#: Parts of what is written in all, at which the disk is full.
FULL = [0.0, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97]
PAGE = 4096


@pytest.fixture
def words(tmp_path):
    return texts(tmp_path / "words", lines=400)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    running = Commands()
    yield running
    running.close()


@pytest.fixture
def disk(tmp_path):
    """`disk(bytes)`: an empty disk of so many; `disk.grow()` makes room."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def make(size):
        unmount()
        pages = max(size // PAGE, 1) * PAGE
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pages}", "tmpfs", place], capture_output=True)
        if done.returncode:
            pytest.skip(f"this user may not mount a tmpfs: {done.stderr.decode().strip()}")
        mounted.append(place)
        return place

    def unmount():
        if mounted:
            subprocess.run(["umount", "-l", mounted.pop()], check=True)

    make.grow = lambda: subprocess.run(["mount", "-o", "remount,size=256m", place], check=True)
    yield make
    unmount()


def size(folder):
    """Bytes of the pages that a folder's files and folders take."""
    return sum(-(-max(path.stat().st_size, 1) // PAGE) * PAGE for path in folder.rglob("*"))


def told(got, disk):
    """What is wrong with the message of a full disk."""
    if "No space left on device" not in got.err:
        return "it does not say what is wrong"
    if str(disk) not in got.err or "bytes" not in got.err:
        return "it does not say where, or how much"
    return got.refused()


def test_training(words, tmp_path, disk, commands):
    values = tiny_comparison(words)["base"]
    values |= {"checkpoint": {"every_steps": 2, "keep": 2}}
    values["trainer"] |= {"max_steps": 6}
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    whole = fit(recipe(file), folder=tmp_path / "whole", progress=False)
    expected = whole.model.state_dict()
    full, wrong = 0, []
    for part in FULL:
        place = disk(int(part * size(tmp_path / "whole")))
        got = commands.run(["fit", str(file), "--folder", str(place / "run")])
        full += got.code != 0
        fault = told(got, place) if got.code else None
        disk.grow()
        again = commands.run(["fit", str(file), "--folder", str(place / "run")])
        if again.code == 0:
            found = torch.load(place / "run" / "model.pt", weights_only=True)
            same = all(torch.equal(found[name], value) for name, value in expected.items())
            fault = fault or (None if same else "it ends elsewhere")
        if fault or again.code:
            wrong.append(f"{part}: {fault}\n{got.err[-900:]}\n{again.err[-900:]}")
    assert not wrong, "\n".join(wrong)
    assert full >= len(FULL) // 2


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_data_preparation(words, tmp_path, disk, commands):
    values = tiny_comparison(words)["base"]
    values["data"]["tokenizer"] = {"use": "bpe", "vocab_size": 400}
    values["trainer"] |= {"max_steps": 2}
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    whole = commands.run(["fit", str(file), f"data.cache={tmp_path / 'whole'}", "--folder", str(tmp_path / "first")])
    assert whole.code == 0, whole.err
    full, wrong = 0, []
    for number, part in enumerate(FULL):
        place = disk(int(part * size(tmp_path / "whole")))
        command = ["fit", str(file), f"data.cache={place / 'cache'}", "--folder", str(tmp_path / f"run{number}")]
        got = commands.run(command)
        full += got.code != 0
        fault = told(got, place) if got.code else None
        disk.grow()
        again = commands.run(command)
        same = again.code == 0 and content(place / "cache") == content(tmp_path / "whole")
        if fault or not same:
            wrong.append(f"{part}: {fault}, the same in the end: {same}\n{got.err[-900:]}\n{again.err[-900:]}")
    assert not wrong, "\n".join(wrong)
    assert full >= len(FULL) // 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_comparisons(words, tmp_path, disk, commands):
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tiny_comparison(words), sort_keys=False))
    whole = commands.run(["compare", str(file), "--folder", str(tmp_path / "whole")], seconds=120)
    assert whole.code == 0, whole.err
    expected = measured(tmp_path / "whole")
    full, wrong = 0, []
    for part in (0.1, 0.4, 0.8):
        place = disk(int(part * size(tmp_path / "whole")))
        command = ["compare", str(file), "--folder", str(place / "run")]
        got = commands.run(command, seconds=120)
        full += got.code != 0
        fault = None
        if got.code == 1 and "Traceback" not in got.err + got.out:  # trials failed, and say why
            fault = None if "No space left on device" in got.out else "the trials do not say why"
        elif got.code:
            fault = None if "full" in got.err else told(got, place)
            fault = fault or got.refused()
        disk.grow()
        again = commands.run([*command, "--retry"], seconds=120)
        same = again.code == 0 and measured(place / "run") == expected
        if fault or not same:
            wrong.append(
                f"{part}: {fault}, the same in the end: {same}\n{got.err[-900:]}{got.out[-900:]}\n{again.err[-900:]}"
            )
    assert not wrong, "\n".join(wrong)
    assert full >= 2


def measured(folder):
    store = Store(folder)
    found = {trial.name: (trial.state, trial.result["measures"]) for trial in store.trials()}
    store.close()
    return found
