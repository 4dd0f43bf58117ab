"""A run that begins from the weights of another one."""

import json
import os
import shutil
import signal

import bakeoff
import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.errors import RecipeError, UserError
from bakeoff.parts.files import file_hash, read_sealed
from bakeoff.recipe import comparison
from bakeoff.recipe.reading import as_yaml
from bakeoff.train import fit, load_run
from bakeoff.train.module import TrainingModule


@pytest.fixture
def source(tiny, tmp_path):
    """A finished run of two steps."""
    return fit(tiny(trainer__max_steps=2, seed=7), folder=tmp_path / "source", progress=False)


def test_it_begins_with_the_weights_and_a_new_optimizer(tiny, source, tmp_path):
    run = fit(tiny(weights=str(source.folder), optimizer__lr=0.0), folder=tmp_path / "run", progress=False)
    for name, tensor in source.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], tensor), name
    assert [row["step"] for row in run.curve] == list(range(1, 9))


def test_it_learns_from_there(tiny, source, tmp_path):
    begun = fit(tiny(weights=str(source.folder)), folder=tmp_path / "begun", progress=False)
    drawn = fit(tiny(), folder=tmp_path / "drawn", progress=False)
    assert begun.curve[0]["loss"] < drawn.curve[0]["loss"] - 0.1
    assert begun.curve[-1]["loss"] < begun.curve[0]["loss"]


def test_the_run_says_where_its_weights_are_from(tiny, source, tmp_path):
    run = fit(tiny(weights=str(source.folder)), folder=tmp_path / "run", progress=False)
    assert read_sealed(run.folder / "meta.json")["weights"] == {
        "path": str(source.folder),
        "id": read_sealed(source.folder / "meta.json")["id"],
        "sha256": file_hash(source.folder / "model.pt"),
    }
    assert load_run(run.folder).recipe.tree["weights"] == str(source.folder)
    assert read_sealed(source.folder / "meta.json")["weights"] is None


def test_a_path_is_relative_to_the_working_folder_and_saved_absolute(tiny, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = tiny(weights="source")
    assert made.tree["weights"] == str(source.folder)
    assert made.saved()["weights"] == str(source.folder)


def test_the_content_counts_and_not_the_path(tiny, source, tmp_path):
    shutil.copytree(source.folder, tmp_path / "copy")
    other = fit(tiny(trainer__max_steps=2, seed=8), folder=tmp_path / "other", progress=False)
    here, copied, another, drawn = (
        tiny(weights=path and str(path)).hash() for path in (source.folder, tmp_path / "copy", other.folder, None)
    )
    assert here == copied
    assert len({here, another, drawn}) == 3


def kill_in_step_6(monkeypatch):
    backward = TrainingModule.backward

    def dying(self, loss):
        if self.clock.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        backward(self, loss)

    monkeypatch.setattr(TrainingModule, "backward", dying)


@pytest.fixture
def killed(tiny, source, tmp_path, monkeypatch, in_child):
    """A run from the weights of `source`, killed after its checkpoint of step 4."""
    with monkeypatch.context() as patched:
        kill_in_step_6(patched)
        recipe = tiny(weights=str(source.folder))
        assert in_child(lambda: fit(recipe, folder=tmp_path / "killed", progress=False)) == -signal.SIGKILL
    return tmp_path / "killed"


def test_a_killed_run_continues_exactly(tiny, source, killed, tmp_path, same_run):
    whole = fit(tiny(weights=str(source.folder)), folder=tmp_path / "whole", progress=False)
    same_run(whole, fit(tiny(weights=str(source.folder)), folder=killed, progress=False))


def test_it_continues_from_a_moved_source_and_without_one(tiny, source, killed, tmp_path, same_run):
    whole = fit(tiny(weights=str(source.folder)), folder=tmp_path / "whole", progress=False)
    shutil.copytree(killed, tmp_path / "again")
    os.rename(source.folder, tmp_path / "moved")
    same_run(whole, fit(tiny(weights=str(tmp_path / "moved")), folder=killed, progress=False))
    same_run(whole, fit(bakeoff.recipe(tmp_path / "again" / "recipe.yaml"), folder=tmp_path / "again", progress=False))


def test_other_weights_do_not_continue_it(tiny, killed, tmp_path):
    other = fit(tiny(trainer__max_steps=2, seed=8), folder=tmp_path / "other", progress=False)
    with pytest.raises(UserError, match=r"another recipe[\s\S]*weights: "):
        fit(tiny(weights=str(other.folder)), folder=killed, progress=False)
    with pytest.raises(UserError, match=r"another recipe[\s\S]*weights: .* None here"):
        fit(tiny(), folder=killed, progress=False)


def refused(capsys, *words):
    """The one message with which a command ends."""
    assert main([str(word) for word in words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("bakeoff: ")
    assert "Traceback" not in told
    return told


def test_a_folder_that_is_not_there_is_said_by_check_and_fit(values, tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(as_yaml({**values, "weights": str(tmp_path / "nowhere")}))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("weights"))
    for words in (["check", path], ["fit", path], ["fit", path, "--folder", tmp_path / "run"]):
        told = refused(capsys, *words)
        assert f":{line}): {tmp_path}/nowhere: there is no such folder" in told
        assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_it_is_said_what_to_run_first(values, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, third = (tmp_path / f"{name}.yaml" for name in ("first", "second", "third"))
    first.write_text(as_yaml(values))
    second.write_text("extends: first.yaml\nweights: runs/first\n")
    third.write_text("extends: [first.yaml, second.yaml]\nseed: 3\n")
    made = f"or make it first: bakeoff fit first.yaml --folder {tmp_path}/runs/first\n"
    for path in (second, third):
        assert refused(capsys, "fit", path).endswith(made)
    assert "make it first" not in refused(capsys, "fit", third, "weights=elsewhere")
    assert "make it first" not in refused(capsys, "fit", first, "weights=elsewhere")
    third.write_text("extends: [first.yaml, second.yaml]\nweights: runs/second\n")
    assert "bakeoff fit second.yaml --folder" in refused(capsys, "fit", third)


def test_a_folder_of_something_else_and_an_unfinished_run_are_refused(tiny, killed, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty is no run: it has no recipe.yaml"):
        tiny(weights=str(tmp_path / "empty")).hash()
    with pytest.raises(UserError, match=r"killed is not finished; finish it: bakeoff fit --resume .*killed"):
        tiny(weights=str(killed)).hash()
    with pytest.raises(RecipeError, match=r"weights \(override\): takes text or null, not 3"):
        tiny(weights=3).check()


def test_weights_that_differ_are_named_with_both_shapes(tiny, source, tmp_path):
    wide = {"model__blocks__layer__feed_forward__width": 24, "model__depth": 1}
    with pytest.raises(UserError) as told:
        fit(tiny(weights=str(source.folder), **wide), folder=tmp_path / "run", progress=False)
    assert "backbone.blocks.0.feed_forward.up.weight: (16, 16) there, (24, 16) here" in str(told.value)
    assert "backbone.blocks.1.mixer.query.weight: (16, 16) there, none here" in str(told.value)
    assert f"bakeoff convert {source.folder} --recipe" in str(told.value)
    assert not (tmp_path / "run" / "meta.json").exists()


def test_two_weights_do_not_become_one(tiny, tmp_path):
    apart = tiny(trainer__max_steps=1, model__tied_embedding=False)
    source = fit(apart, folder=tmp_path / "source", progress=False)
    with pytest.raises(UserError, match=r"head.projection.weight: differs from backbone.embed.weight there"):
        fit(tiny(weights=str(source.folder)), folder=tmp_path / "run", progress=False)


def test_one_weight_may_become_two(tiny, source, tmp_path):
    apart = tiny(weights=str(source.folder), model__tied_embedding=False, optimizer__lr=0.0)
    run = fit(apart, folder=tmp_path / "run", progress=False)
    assert torch.equal(run.model.head.projection.weight, source.model.backbone.embed.weight)


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [({"use": "char", "vocab_size": 259}, "data.tokenizer.use: 'byte' there, 'char' here"),
     ({"use": "bpe", "vocab_size": 259}, "data.tokenizer.use: 'byte' there, 'bpe' here")],
)  # fmt: skip
def test_another_tokenizer_is_refused(tiny, source, tmp_path, tokenizer, said):
    with pytest.raises(UserError, match=r"data.tokenizer \(override\): is not that of") as told:
        fit(tiny(weights=str(source.folder), data__tokenizer=tokenizer), folder=tmp_path / "run", progress=False)
    assert said in str(told.value)


def test_a_tokenizer_that_has_learnt_from_other_texts_is_refused(tiny, tmp_path):
    bpe = {"data__tokenizer": {"use": "bpe", "vocab_size": 270}}
    source = fit(tiny(trainer__max_steps=1, **bpe), folder=tmp_path / "source", progress=False)
    fit(tiny(trainer__max_steps=1, weights=str(source.folder), **bpe), folder=tmp_path / "same", progress=False)
    (tmp_path / "texts").mkdir()
    for number in range(24):
        (tmp_path / "texts" / f"{number}.txt").write_text("quite other words stand here " * 9)
    other = tiny(weights=str(source.folder), data__corpus__path=str(tmp_path / "texts"), **bpe)
    with pytest.raises(UserError, match="it has learnt from other texts"):
        fit(other, folder=tmp_path / "run", progress=False)


def test_a_damaged_source_is_refused(tiny, source, tmp_path):
    weights = source.folder / "model.pt"
    torch.save({name: tensor + 1 for name, tensor in source.model.state_dict().items()}, weights)
    with pytest.raises(UserError, match=r"model.pt is damaged"):
        fit(tiny(weights=str(source.folder)), folder=tmp_path / "run", progress=False)


def test_an_arm_may_begin_from_weights(values, source, tmp_path):
    path = tmp_path / "compared.yaml"
    arms = {"drawn": {}, "begun": {"weights": str(source.folder)}}
    path.write_text(json.dumps({"base": values, "arms": arms, "budget": {"tokens": 512}}))
    found = comparison(path).arms
    assert found["drawn"].tree["weights"] is None
    assert found["begun"].tree["weights"] == str(source.folder)
    assert found["begun"].hash() != found["drawn"].hash()
