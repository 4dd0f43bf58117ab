"""From a trained dense run to a trained mixture, by the commands; and training that leaves parts as they are."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys

import bakeoff
import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.parts.files import file_hash, read_sealed
from bakeoff.recipe.reading import as_yaml
from bakeoff.train import fit, import_weights, load_run
from bakeoff.train.module import TrainingModule

WORDS = "the a model state token reads writes keeps window long short learns value of and to in"


@pytest.fixture(autouse=True)
def one_thread(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(0)
    for number in range(24):
        (folder / f"{number:02}.txt").write_text(" ".join(draw.choices(WORDS.split(), k=40)))
    return folder


@pytest.fixture
def dense(texts):
    """A dense recipe as plain values, with a tokenizer that learns."""
    layer = {
        "use": "pre_norm",
        "mixer": {"use": "attention", "n_heads": 2, "position": {"use": "rope"}},
        "feed_forward": {"use": "gated_mlp", "width": 24},
    }
    return {
        "name": "dense",
        "model": {"d_model": 16, "depth": 2, "pattern": ["layer"], "blocks": {"layer": layer}},
        "data": {
            "corpus": {"use": "text_files", "path": str(texts)},
            "tokenizer": {"use": "bpe", "vocab_size": 270},
            "length": 16,
            "batch_tokens": 64,
            "micro_batch": 2,
        },
        "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2, "fused": True},
        "trainer": {"max_steps": 8, "log_every_n_steps": 1, "gradient_clip_val": 1.0},
        "validation": {"every_steps": 4, "tokens": 64},
        "checkpoint": {"every_steps": 2},
    }


def mixture(dense, changes=None, **more):
    """The recipe of a mixture of four experts, each as wide as the dense feed-forward."""
    expert = dense["model"]["blocks"]["layer"]["feed_forward"]
    balance = [{"use": "load_balance", "coefficient": 0.01}]
    own = {"n_experts": 4, "expert": expert, "router": {"use": "top_k"}, "balance": balance}
    node = {"use": "mixture_of_experts", **own, **more}
    fixed = {"name": "mixture", "model.blocks.layer.feed_forward": node, "converter": {"use": "upcycle"}}
    return bakeoff.recipe(dense, {**fixed, **(changes or {})})


@pytest.fixture
def trained(dense, tmp_path):
    return fit(bakeoff.recipe(dense), folder=tmp_path / "dense", progress=False)


@pytest.fixture
def begun(dense, trained, tmp_path):
    return import_weights(mixture(dense), trained.folder, tmp_path / "begun")


def test_by_commands_from_dense_to_mixture(dense, trained, tmp_path, capsys):
    recipe, begun, run = (tmp_path / name for name in ("mixture.yaml", "begun", "run"))
    recipe.write_text(as_yaml(mixture(dense).tree))
    assert main(["convert", str(trained.folder), "--recipe", str(recipe), "--folder", str(begun)]) == 0
    assert main(["fit", str(recipe), f"weights={begun}", "--folder", str(run)]) == 0
    made = load_run(run)
    assert made.curve[0]["loss"] < trained.curve[0]["loss"] - 0.3
    assert made.recipe.tree["weights"] == str(begun)
    assert made.curve[-1]["step"] == 8


def test_the_first_loss_is_the_dense_runs(dense, trained, begun, tmp_path):
    still = {"optimizer.lr": 0.0}
    dense_again = bakeoff.recipe(dense, {**still, "weights": str(trained.folder)})
    one = fit(dense_again, folder=tmp_path / "one", progress=False)
    other = fit(mixture(dense, {**still, "weights": str(begun.folder)}), folder=tmp_path / "other", progress=False)
    for mine, theirs in zip(other.curve, one.curve, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    assert other.curve[-1]["bits_per_byte"] == pytest.approx(trained.curve[-1]["bits_per_byte"], rel=1e-6)


def test_the_run_that_is_made_opens_and_says_where_it_is_from(trained, begun):
    meta = read_sealed(begun.folder / "meta.json")
    assert meta["converted"] == {
        "path": str(trained.folder),
        "id": read_sealed(trained.folder / "meta.json")["id"],
        "sha256": file_hash(trained.folder / "model.pt"),
    }
    opened = load_run(begun.folder)
    prompts = ["the model", "a long"]
    assert opened.generate(prompts, max_new_tokens=4) == trained.generate(prompts, max_new_tokens=4)


def refused(capsys, *words):
    assert main([str(word) for word in words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("bakeoff: ")
    assert "Traceback" not in told
    return told


WRONG = [
    ({"model.blocks.layer.feed_forward.expert.width": 32}, "experts.up.weight: (24, 16) there, (32, 16) here"),
    ({"model.d_model": 32}, "backbone.embed.weight: (270, 16) there, (270, 32) here"),
    ({"model.blocks.layer.feed_forward.expert": {"use": "mlp", "width": 24}}, "is GatedMLP (activation silu) in the"),
    ({"model.blocks.layer.feed_forward.router.k": 5}, "k is 5, n_experts 4"),
    ({"data.tokenizer.vocab_size": 280}, "data.tokenizer.vocab_size: 270 there, 280 here"),
    ({"data.tokenizer": {"use": "byte"}}, "data.tokenizer.use: 'bpe' there, 'byte' here"),
    ({"converter": None}, "give it `converter:`, one of {use: added_parts, …}"),
    ({"converter": {"use": "name_map", "weights": {}}}, "is a run of ours; the recipe's converter reads published"),
    ({"converter": {"use": "upcycle", "noise": -1}}, "noise is -1"),
]


def test_what_does_not_agree_is_one_message_and_nothing_is_made(dense, trained, tmp_path, capsys):
    path, folder = tmp_path / "mixture.yaml", tmp_path / "made"
    for changes, said in WRONG:
        path.write_text(as_yaml(mixture(dense, changes).tree))
        assert said in refused(capsys, "convert", trained.folder, "--recipe", path, "--folder", folder), said
        assert not folder.exists()


def test_a_source_that_is_no_run(dense, trained, tmp_path, capsys):
    path, folder = tmp_path / "mixture.yaml", tmp_path / "made"
    path.write_text(as_yaml(mixture(dense).tree))
    (tmp_path / "empty").mkdir()
    (trained.folder / "summary.json").unlink()
    told = {"nowhere": "there is no such folder", "empty": "is no run: it has no recipe.yaml", "dense": "not finished"}
    for source, said in told.items():
        assert said in refused(capsys, "convert", tmp_path / source, "--recipe", path, "--folder", folder)
    assert not folder.exists()


def test_it_has_no_published_layout(begun, tmp_path, capsys):
    told = refused(capsys, "convert", begun.folder, "--folder", tmp_path / "out")
    assert "knows no published layout; give the recipe a converter that does" in told


def kill_in_step_6(monkeypatch):
    backward = TrainingModule.backward

    def dying(self, loss):
        if self.clock.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        backward(self, loss)

    monkeypatch.setattr(TrainingModule, "backward", dying)


def in_child(call):
    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.parametrize(("freeze", "kept"), [("router", ".router."), ("experts", ".experts."), (None, "nothing")])
def test_what_is_frozen_stays_and_a_killed_run_continues_exactly(dense, begun, tmp_path, monkeypatch, freeze, kept):
    recipe = mixture(dense, {"weights": str(begun.folder)}, freeze=freeze)
    whole = fit(recipe, folder=tmp_path / "whole", progress=False)
    before = begun.model.state_dict()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (kept in name), name
    with monkeypatch.context() as patched:
        kill_in_step_6(patched)
        killed = in_child(lambda: fit(recipe, folder=tmp_path / "killed", progress=False))
    assert killed == -signal.SIGKILL
    continued = fit(recipe, folder=tmp_path / "killed", progress=False)
    for name, tensor in continued.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("freeze", ["router", "experts"])
def test_two_ranks_train_the_rest_as_one_does(dense, begun, tmp_path, freeze):
    recipe = mixture(dense, {"weights": str(begun.folder)}, freeze=freeze)
    alone = fit(recipe, folder=tmp_path / "alone", progress=False)
    path = tmp_path / "mixture.yaml"
    path.write_text(as_yaml(recipe.tree))
    words = ["fit", str(path), "trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu"]
    process = subprocess.run(
        [sys.executable, "-m", "bakeoff", *words, "--folder", str(tmp_path / "two")],
        capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    for name, tensor in load_run(tmp_path / "two").model.state_dict().items():
        torch.testing.assert_close(tensor, alone.model.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_a_frozen_router_keeps_its_bias_too(dense, trained, tmp_path):
    balanced = {"use": "bias_balanced", "k": 2}
    begun = import_weights(mixture(dense, router=balanced, balance=[]), trained.folder, tmp_path / "begun")
    moved = {}
    for freeze in ("router", None):
        changes = {"weights": str(begun.folder)}
        recipe = mixture(dense, changes, router=balanced, balance=[], freeze=freeze)
        after = fit(recipe, folder=tmp_path / str(freeze), progress=False).model.state_dict()
        before = begun.model.state_dict()
        moved[freeze] = [name for name in after if ".router." in name and not torch.equal(after[name], before[name])]
    assert moved["router"] == []
    assert "backbone.blocks.0.feed_forward.router.selection_bias" in moved[None]
