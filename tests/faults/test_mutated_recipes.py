"""Five hundred recipes with a fault each: what is accepted means what it says, all else is one message."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from bakeoff.recipe import comparison, recipe
from bakeoff.recipe.node import short_name

from .commands import Commands
from .mutants import CANARY, mutants

RECIPES = Path(__file__).parents[2] / "recipes"
MUTANTS = 500
QUICK = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The shipped recipes, where files beside them can be written."""
    return Path(shutil.copytree(RECIPES, tmp_path_factory.mktemp("mutated") / "recipes"))


@pytest.fixture
def commands():
    running = Commands()
    yield running
    running.close()


def written(value, path=()):
    """Path and text of every scalar in a document; paths as a resolved recipe has them."""
    if isinstance(value, dict):
        for key, item in value.items():
            words = [] if key == "init_args" else ["use"] if key == "class_path" else key.split(".")
            yield from written(item, (*path, *words))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from written(item, (*path, str(index)))
    else:
        yield path, value


def held(tree, path):
    """What stands at a path; raises `KeyError` where nothing does."""
    for word in path:
        try:
            tree = tree[int(word)] if isinstance(tree, list) else tree[word]
        except (ValueError, IndexError, TypeError) as error:
            raise KeyError(path) from error
    return tree


def alike(value, text):
    """Whether a resolved value is what was written, spelled in YAML."""
    if "${" in text:
        return True
    if value is None or isinstance(value, bool):
        return text.lower() in (("null", "~", "") if value is None else (str(value).lower(),))
    if isinstance(value, (int, float)):
        return float(int(text, 16) if text.startswith("0x") else text) == float(value)
    return value == short_name(text)


def unseen(document, tree, skipped=("extends", "imports")):
    """The paths at which a resolved recipe does not hold what its file says."""
    missing = []
    for path, text in written(document):
        if path[0] in skipped:
            continue
        try:
            value = held(tree, path)
            # of a folder, the place that it stands for is held
            seen = alike(value, text) or (path == ("weights",) and str(value) == str(Path.cwd() / text))
        except KeyError:
            seen = False
        if not seen:
            missing.append(".".join(path))
    return missing


def spelled(path):
    """A file's values as they are written, by PyYAML itself."""
    return yaml.load(path.read_text(encoding="utf-8-sig"), Loader=yaml.BaseLoader)


def resolved(path):
    """What an accepted file of ours became, and which of its values are not to be seen in it."""
    document = spelled(path)
    if "arms" not in document:
        tree = recipe(path).full
        return tree, unseen(document, tree)
    made = comparison(path)
    arms = document.pop("arms")
    base = document.pop("base")
    missing = unseen(document, made.sections)
    missing += unseen(base, made.base.full) if isinstance(base, dict) else []
    for name, change in arms.items():
        missing += unseen(change or {}, made.arms[name].full)
    return {
        "sections": made.sections | {"name": ""},
        "arms": {name: arm.full for name, arm in made.arms.items()},
    }, missing


def words_for(path, text):
    """The quickest command that reads all of it."""
    return ["cite", str(path)] if "\narms:" in text else ["fit", str(path), "--print"]


def share(number, among):
    """How many of `number` each of `among` gets."""
    return [number // among + (place < number % among) for place in range(among)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [QUICK, pytest.param(MUTANTS, marks=pytest.mark.slow)])
def test_a_mutated_recipe_is_told_or_means_what_it_says(folder, tmp_path, commands, monkeypatch, number):
    monkeypatch.chdir(tmp_path)
    files = sorted(folder.rglob("*.yaml"))
    canary, wrong, refused = tmp_path / "canary", [], 0
    for source, few in zip(files, share(number, len(files)), strict=True):
        text, mutant = source.read_text(), source.parent / "mutant.yaml"
        before = commands.run(words_for(source, text), Resolved(source))
        assert before.code == 0, before.err
        assert before.found[1] == []
        for one in mutants(text, few, random.Random(f"{number} {source.name}")):
            mutant.write_bytes(one.content.replace(CANARY.encode(), str(canary).encode()))
            got = commands.run(words_for(mutant, text), Resolved(mutant))
            refused += got.code == 2
            fault = got.refused() if got.code != 0 else said(one, got.found, before.found)
            fault = "it was executed" if canary.exists() else fault
            if fault:
                wrong.append(f"{source.name}, {one.fault} at {str(one.path)[:80]}: {fault}\n{got.err[-1500:]}")
        mutant.unlink(missing_ok=True)  # where there are more files than mutants
    assert not wrong, f"{len(wrong)} of {number}:\n" + "\n".join(wrong[:20])
    assert refused > number // 2


class Resolved:
    """`resolved` of a path, to be called in another process."""

    def __init__(self, path):
        self.path = path

    def __call__(self):
        return resolved(self.path)


def said(mutant, found, before):
    """What is wrong with an accepted mutant."""
    tree, missing = found
    if missing:
        return f"accepted, and not to be seen: {', '.join(missing[:3])}"
    if mutant.same and tree | {"name": ""} != before[0] | {"name": ""}:
        return "it means something else"
    return None


@pytest.mark.parametrize("fault", ["!!python/object/apply:os.system ['touch canary']", "\0", "&a [*a]"])
def test_the_installed_command_says_so_too(folder, tmp_path, fault):
    path = folder / "odd.yaml"
    path.write_text(f"extends: models/tiny.yaml\nname: {fault}\n")
    words = [sys.executable, "-m", "bakeoff", "fit", str(path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("bakeoff: ")) == (2, "", 1)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
