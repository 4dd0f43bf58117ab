"""A run opened from its folder."""

import json
import os
import subprocess
import sys

import bakeoff
import pytest
import torch
import yaml
from bakeoff.errors import UserError
from bakeoff.parts.files import write_sealed
from bakeoff.train import fit, load_run

SCRIPT = '''
from bakeoff import register
from bakeoff.interfaces import Result, SequenceMixer

print("the script runs")


@register("passing_by")
class PassingBy(SequenceMixer):
    """Mixes nothing."""

    def forward(self, x, sequence, state=None):
        return Result(x, state)

    def flops(self, queries, keys):
        return 0
'''


@pytest.fixture
def run(tiny, tmp_path):
    return fit(tiny(trainer__max_steps=4), folder=tmp_path / "run", progress=False)


def test_three_lines_in_another_process_and_folder_give_equal_logits(run, tmp_path):
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        expected, _ = run.model.logits(tokens)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = f"""
import bakeoff, torch
run = bakeoff.load_run({str(run.folder)!r})
torch.set_num_threads(1)
with torch.no_grad():
    torch.save(run.model.logits(torch.arange(16)[None])[0], "logits.pt")
assert run.tokenizer.decode(run.tokenizer.encode("text")) == "text"
import sys
assert not any(name.startswith("lightning") for name in sys.modules), "opening a run trains nothing"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(elsewhere / "logits.pt", weights_only=True), expected)


def test_a_run_knows_its_numbers_and_generates(run):
    again = load_run(run.folder)
    assert again.metrics == run.metrics
    assert again.curve == run.curve
    assert again.recipe.hash() == run.recipe.hash()
    assert again.data.fingerprint == run.data.fingerprint
    prompts = ["the model", "a state"]
    assert again.generate(prompts, max_new_tokens=4) == run.generate(prompts, max_new_tokens=4)


def test_an_unfinished_run_opens_with_its_newest_checkpoint(run):
    (run.folder / "model.pt").unlink()
    (run.folder / "summary.json").unlink()
    again = load_run(run.folder)
    assert again.metrics == {}
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])


def test_a_package_that_is_missing_is_named_with_its_version(run):
    meta = json.loads((run.folder / "meta.json").read_text())
    meta["components"]["warp_mixer"] = {"package": "bakeoff-warp", "version": "1.2", "target": "bakeoff_warp:Warp"}
    meta.pop("sha256")
    write_sealed(run.folder / "meta.json", meta)
    with pytest.raises(UserError, match=r"warp_mixer of package bakeoff-warp 1\.2.*pip install bakeoff-warp==1\.2"):
        load_run(run.folder)


@pytest.mark.parametrize(
    ("name", "damaging", "words"),
    [
        ("recipe.yaml", lambda path: path.unlink(), "is no run: it has no recipe.yaml"),
        ("recipe.yaml", lambda path: path.write_text("model: [unclosed"), "recipe.yaml is damaged"),
        ("recipe.yaml", lambda path: path.write_text("just: text"), "has no section model"),
        ("meta.json", lambda path: path.write_text("{"), "meta.json is damaged"),
        ("meta.json", lambda path: path.unlink(), "meta.json is not there"),
        ("model.pt", lambda path: os.truncate(path, 1000), "model.pt is damaged: cut short"),
        (
            "model.pt",
            lambda path: torch.save({"odd": torch.zeros(1)}, path),
            "model.pt is damaged: it is not what the run has written",
        ),
        ("tokenizer/tokenizer.json", lambda path: path.unlink(), "tokenizer is damaged"),
        ("summary.json", lambda path: path.write_text("["), "summary.json is damaged"),
    ],
)
def test_a_damaged_folder_is_one_message_with_file_and_fault(run, name, damaging, words):
    damaging(run.folder / name)
    with pytest.raises(UserError, match=words):
        load_run(run.folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        load_run(tmp_path / "nowhere")


def test_a_script_runs_only_where_it_is_trusted(values, tmp_path, in_child, capfd):
    script = tmp_path / "passing_by.py"
    script.write_text(SCRIPT)
    values["imports"] = [str(script)]
    values["model"]["blocks"]["layer"]["mixer"] = {"use": "passing_by"}
    values["data"]["isolate_documents"] = False  # the script's mixer claims nothing
    assert in_child(lambda: bakeoff.recipe(values).fit(folder=tmp_path / "run", progress=False)) == 0
    capfd.readouterr()
    script.unlink()  # the run has a copy
    with pytest.raises(UserError, match=r"runs the script imports/.*passing_by\.py.*trust=True"):
        load_run(tmp_path / "run")
    assert "the script runs" not in capfd.readouterr().out
    opened = load_run(tmp_path / "run", trust=True)
    assert "the script runs" in capfd.readouterr().out
    assert opened.metrics["step"] == 8


def test_a_foreign_class_needs_trust(run):
    values = yaml.safe_load((run.folder / "recipe.yaml").read_text())
    values["model"]["init_args"]["blocks"]["layer"]["init_args"]["mixer"]["class_path"] = "antigravity.Mixer"
    (run.folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match=r"imports antigravity\.Mixer"):
        load_run(run.folder)
    assert "antigravity" not in sys.modules


def test_the_package_offers_it(run):
    assert bakeoff.load_run(run.folder).metrics == run.metrics


def test_a_part_that_a_script_or_notebook_registers_itself_trains_there(tiny, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny().tree))
    program = (
        SCRIPT
        + """
import bakeoff
changed = {"model.blocks.layer.mixer": {"use": "passing_by"}, "data.isolate_documents": False}
run = bakeoff.recipe("tiny.yaml", changed).fit(folder="run", progress=False)
print(run.metrics["step"])
"""
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["8"], done.stderr
