"""Run folders that a disk or somebody has damaged: told, or of no consequence; never taken for right."""

import json
import os
import pickle
import random
import shutil
import zipfile

import pytest
import torch
import yaml
from bakeoff.recipe import recipe
from bakeoff.train import fit, load_run

from .commands import Commands

DAMAGED = 100
QUICK = 30
#: Newest checkpoint of the unfinished run.
CHECKPOINT = 4


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return open, (str(self.canary), "w")


def cut(draw, path, others):
    os.truncate(path, draw.randrange(max(path.stat().st_size, 1)))


def flipped(draw, path, others):
    """One bit is another."""
    raw = bytearray(path.read_bytes())
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    path.write_bytes(raw)


def digit(draw, path, others):
    """One digit is another, so that all still reads well."""
    raw = bytearray(path.read_bytes())
    digits = [place for place, byte in enumerate(raw) if 0x30 <= byte <= 0x39]
    raw[draw.choice(digits or [0])] = draw.choice(b"0123456789")
    path.write_bytes(raw)


def emptied(draw, path, others):
    path.write_bytes(b"")


def missing(draw, path, others):
    path.unlink()


def folder(draw, path, others):
    path.unlink()
    path.mkdir()


def swapped(draw, path, others):
    """What another file holds."""
    path.write_bytes(draw.choice([other for other in others if other != path]).read_bytes())


def noise(draw, path, others):
    path.write_bytes(draw.randbytes(2_000))


DAMAGES = [cut, flipped, digit, emptied, missing, folder, swapped, flipped, digit, noise]


def _files(place):
    return sorted(path for path in place.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """A recipe that trains in a moment, with its texts and a tokenizer that learns."""
    texts = tmp_path_factory.mktemp("texts")
    draw = random.Random(0)
    for number in range(24):
        words = draw.choices(["the", "model", "reads", "a", "token", "and", "keeps", "its", "state"], k=40)
        (texts / f"{number:02}.txt").write_text(" ".join(words))
    block = {
        "use": "pre_norm",
        "mixer": {"use": "attention", "n_heads": 2},
        "feed_forward": {"use": "mixture_of_experts", "n_experts": 2, "expert": {"use": "mlp", "width": 8}},
    }
    return {
        "name": "tiny",
        "model": {"d_model": 16, "depth": 1, "pattern": ["layer"], "blocks": {"layer": block}},
        "data": {
            "corpus": {"use": "text_files", "path": str(texts)},
            "tokenizer": {"use": "bpe", "vocab_size": 280},
            "length": 16,
            "batch_tokens": 64,
        },
        "trainer": {"max_steps": 6, "log_every_n_steps": 1, "accelerator": "cpu"},
        "validation": {"every_steps": 3, "tokens": 64},
        "checkpoint": {"every_steps": 2, "keep": 3},
    }


@pytest.fixture(scope="module")
def made(values, tmp_path_factory):
    """(finished run, unfinished run, comparison) as they should be."""
    root = tmp_path_factory.mktemp("made")
    before = os.environ.get("BAKEOFF_CACHE")
    os.environ["BAKEOFF_CACHE"] = str(root / "cache")
    torch.set_num_threads(1)
    fit(recipe(values), folder=root / "finished", progress=False)
    shutil.copytree(root / "finished", root / "unfinished")
    for name in ("model.pt", "summary.json", "checkpoints/step-6.ckpt"):
        (root / "unfinished" / name).unlink()
    yield root
    if before is None:
        del os.environ["BAKEOFF_CACHE"]
    else:
        os.environ["BAKEOFF_CACHE"] = before


@pytest.fixture
def commands(made):
    running = Commands()
    yield running
    running.close()


def weights(run):
    return {name: value.tolist() for name, value in run.model.state_dict().items()}


class Opened:
    """What a run holds, as plain values."""

    def __init__(self, place):
        self.place = place

    def __call__(self):
        run = load_run(self.place)
        known = int(run.metrics.get("step", CHECKPOINT))  # later rows are made again
        kept = [row for row in run.curve if row["step"] <= known]
        rows = [{name: cell for name, cell in row.items() if name != "seconds"} for row in kept]
        metrics = {name: number for name, number in run.metrics.items() if name != "seconds"}
        recipe_ = {name: value for name, value in run.recipe.full.items() if name != "name"}
        told = [row for row in run.layers if row["step"] <= known]
        return weights(run), rows, metrics, run.tokenizer.encode("the model keeps"), recipe_, told


def damaged(place, draw):
    """Damage one file of a folder; says how."""
    files = _files(place)
    path = draw.choice(files)
    damage = draw.choice(DAMAGES)
    damage(draw, path, files)
    return f"{damage.__name__}: {path.relative_to(place)}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [QUICK, pytest.param(DAMAGED, marks=pytest.mark.slow)])
def test_a_damaged_run_is_told_or_is_what_it_was(made, tmp_path, commands, number):
    draw, wrong, told = random.Random(number), [], 0
    expected = Opened(made / "finished")()
    half = Opened(made / "unfinished")()
    for count in range(number):
        kind = ("finished", "unfinished")[count % 2]
        place = tmp_path / f"{count}"
        shutil.copytree(made / kind, place)
        how = damaged(place, draw)
        generate = ["generate", str(place), "--prompt", "the", "--max-new-tokens", "2", "--device", "cpu"]
        got = commands.run(generate, Opened(place))
        right = got.code == 0 and _same(got.found, expected if kind == "finished" else half)
        fault = got.refused() if got.code else None if right else "taken for right"
        if fault and not _earlier(how, got):
            wrong.append(f"generate, {kind}, {how}: {fault}\n{got.err[-800:]}")
        again = commands.run(["fit", "--resume", str(place)], Opened(place))
        fault = again.refused() if again.code else None if _same(again.found, expected) else "it ends elsewhere"
        if fault:
            wrong.append(f"fit --resume, {kind}, {how}: {fault}\n{again.err[-800:]}")
        told += got.code == 2
        shutil.rmtree(place)
    assert not wrong, f"{len(wrong)} of {2 * number}:\n" + "\n".join(wrong)
    assert told > number // 4


def _same(found, expected):
    return found[0] == expected[0] and all(a == b for a, b in zip(found[1:], expected[1:], strict=True))


def _earlier(how, got):
    """A run without its summary, or its newest checkpoint, opens as it was at the newest checkpoint that is sound."""
    return got.code == 0 and ("checkpoints" in how or "summary" in how)


@pytest.mark.parametrize("name", ["model.pt", "checkpoints/step-4.ckpt"])
@pytest.mark.parametrize("form", ["pickle", "archive"])
def test_nothing_that_a_run_carries_is_executed(made, tmp_path, commands, name, form):
    place, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(made / ("finished" if name == "model.pt" else "unfinished"), place)
    if form == "pickle":
        (place / name).write_bytes(pickle.dumps({"state_dict": Payload(canary)}))
    else:
        torch.save({"state_dict": Payload(canary), "run": "x", "global_step": 4}, place / name)
    if name != "model.pt":
        (place / "checkpoints" / "step-2.ckpt").unlink()
    for words in (
        ["generate", str(place), "--prompt", "a"],
        ["evaluate", str(place), "--measure", "validation"],
        ["fit", "--resume", str(place)],
    ):
        got = commands.run(words)
        if got.code != 0:  # a checkpoint that is no archive counts as damaged, and the run begins again
            assert got.refused() is None, got.err
        assert not canary.exists()


def test_a_class_that_the_recipe_of_a_run_names_is_not_imported(made, tmp_path, commands):
    place = tmp_path / "run"
    shutil.copytree(made / "finished", place)
    held = yaml.safe_load((place / "recipe.yaml").read_text())
    for section, path in (("optimizer", "antigravity.Adam"), ("trainer", "antigravity.Logger")):
        changed = json.loads(json.dumps(held))
        changed[section] = {"class_path": path} if section == "optimizer" else {"logger": {"class_path": path}}
        (place / "recipe.yaml").write_text(yaml.safe_dump(changed))
        for words in (["generate", str(place), "--prompt", "a"], ["fit", "--resume", str(place)]):
            got = commands.run(words)
            assert got.refused() is None, (words, got)
            assert "antigravity" in got.err or "recipe.yaml is damaged" in got.err


def test_a_recipe_of_a_run_that_laughs_is_told(made, tmp_path, commands):
    place = tmp_path / "run"
    shutil.copytree(made / "finished", place)
    laughs = "\n".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 12))
    text = (place / "recipe.yaml").read_text()
    (place / "recipe.yaml").write_text(f"b0: &b0 [lol]\n{laughs}\n{text}")
    for words in (["generate", str(place), "--prompt", "a"], ["fit", "--resume", str(place)], ["cite", str(place)]):
        got = commands.run(words)
        assert got.refused() is None, (words, got)


def test_an_archive_that_swells_is_no_checkpoint(made, tmp_path, commands):
    place = tmp_path / "run"
    shutil.copytree(made / "finished", place)
    with zipfile.ZipFile(place / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", bytes(50_000_000))
    got = commands.run(["generate", str(place), "--prompt", "a"])
    assert got.refused() is None, got
