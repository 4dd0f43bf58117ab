"""Datastores of trained runs: what is in them, builds that go on, and what they are worth."""

import random

import bakeoff
import bakeoff.evaluate
import bakeoff_retro.knn.building as building
import numpy as np
import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.interfaces import Sequence
from bakeoff.model.bits import evaluate_bits
from bakeoff.parts.files import read_sealed
from bakeoff.recipe.reading import as_yaml
from bakeoff.train import fit, load_run
from bakeoff_retro import KNNLMHead
from bakeoff_retro.knn.building import Source, build, opened
from bakeoff_retro.knn.datastore import Datastore
from bakeoff_retro.knn.indexes import open_index

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Texts of few sentences in ever new orders, and a model that learns from them for a moment."""
    texts = tmp_path_factory.mktemp("sentences")
    draw = random.Random(0)
    sentences = ["".join(draw.choices("abcdefgh ", k=30)) + "." for _ in range(12)]
    for number in range(40):
        (texts / f"{number:02}.txt").write_text(" ".join(draw.choices(sentences, k=4)))
    mixer = {"use": "attention", "n_heads": 2, "position": {"use": "rope"}}
    layer = {"use": "pre_norm", "mixer": mixer, "feed_forward": {"use": "gated_mlp", "width": 24}}
    return {
        "name": "plain",
        "model": {"d_model": 16, "depth": 2, "pattern": ["layer"], "blocks": {"layer": layer}},
        "data": {
            "corpus": {"use": "text_files", "path": str(texts)},
            "tokenizer": {"use": "byte"},
            "length": 50,
            "batch_tokens": 200,
        },
        "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2},
        "trainer": {"max_steps": 30},
    }


@pytest.fixture(scope="module")
def trained(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        fit(bakeoff.recipe(recipe), folder=folder / "run", progress=False)
    return folder / "run"


@pytest.fixture
def run(trained):
    return load_run(trained)


@pytest.fixture
def other(trained):
    """A run that was trained for a moment more."""
    run = load_run(trained)
    with torch.no_grad():
        run.model.backbone.embedding.mul_(1.01)
    return run


def quietly(entries):
    pass


def by_hand(run):
    """States and next tokens, a piece of a document in a window at a time, each computed alone."""
    states, tokens = [], []
    data, store = run.data, run.data.store("train")
    owners = np.searchsorted(store.ends, np.arange(len(store.tokens)), side="right")
    for start in range(0, len(store.tokens) - 1, data.length):
        window = slice(start, start + data.length + 1)
        for document in np.unique(owners[window]):
            piece = torch.from_numpy(store.tokens[window][owners[window] == document].astype(np.int64))
            if len(piece) > 1:
                with torch.no_grad():
                    states.append(run.model.backbone(Sequence(piece[None, :-1])).y[0])
                tokens.append(piece[1:])
    return torch.cat(states), torch.cat(tokens)


def test_every_target_is_an_entry_with_the_state_that_it_was_predicted_from(run, tmp_path):
    made = build(Source(run), tmp_path / "store", kind="float32", tell=quietly)
    keys, values = made.on(CPU)
    states, tokens = by_hand(run)
    assert torch.equal(values, tokens.int())
    torch.testing.assert_close(keys, states, rtol=1e-4, atol=1e-5)
    half = build(Source(run), tmp_path / "half", kind="float16", tell=quietly)
    assert torch.equal(half.on(CPU)[0], keys.half())
    few = build(Source(run, tokens=500), tmp_path / "few", tell=quietly)
    assert 400 < few.entries <= 500
    assert torch.equal(few.on(CPU)[1][:40], values[:40])


def test_a_build_that_is_killed_goes_on(run, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "BATCHES", 3)
    whole = build(Source(run), tmp_path / "whole", tell=quietly)
    heard = []

    def killed(entries):
        heard.append(entries)
        if len(heard) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(Source(run), tmp_path / "store", tell=killed)
    assert not (tmp_path / "store").exists()
    part = tmp_path / "store.unfinished"
    assert read_sealed(part / "reached.json")["batches"] == 6
    with open(part / "keys", "ab") as keys:
        keys.write(b"cut short in the midst of a wri")
    again = []
    made = build(Source(run), tmp_path / "store", tell=again.append)
    assert again[0] == heard[6]  # the seventh batch is the first that is computed anew
    for name in ("keys", "values", "manifest.json"):
        assert (made.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "whole"]


def test_a_build_goes_on_with_what_it_began_with_alone(run, other, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "BATCHES", 1)

    def killed(entries):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(Source(run), tmp_path / "store", tell=killed)
    with pytest.raises(UserError, match="beginning of another datastore: model, head differ"):
        build(Source(other), tmp_path / "store", tell=quietly)
    with pytest.raises(UserError, match="beginning of another datastore: type differ"):
        build(Source(run), tmp_path / "store", kind="float32", tell=quietly)
    keys = tmp_path / "store.unfinished" / "keys"
    keys.write_bytes(keys.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"keys is damaged: it is cut short; remove .*store\.unfinished"):
        build(Source(run), tmp_path / "store", tell=quietly)


def test_refuses_what_makes_no_datastore(run, tmp_path):
    (tmp_path / "used").mkdir()
    with pytest.raises(UserError, match="is there already"):
        build(Source(run), tmp_path / "used", tell=quietly)
    with pytest.raises(UserError, match=r"another process writes .*taken\.unfinished"):
        build(Source(run), tmp_path / "taken", tell=lambda _: build(Source(run), tmp_path / "taken", tell=quietly))
    with pytest.raises(UserError, match="tokens is 0"):
        Source(run, tokens=0)
    with torch.no_grad():
        run.model.backbone.norm.weight.fill_(1e6)
    with pytest.raises(UserError, match="no finite float16; keep keys as --type float32"):
        build(Source(run), tmp_path / "huge", tell=quietly)


@pytest.fixture
def asking(recipe, tmp_path):
    """The recipe of a model that asks the datastore in `store`, in a file."""
    head = {"use": "knn_lm", "datastore": str(tmp_path / "store"), "k": 16, "weight": 0.5}
    model = {**recipe["model"], "head": head}
    path = tmp_path / "asking.yaml"
    path.write_text(as_yaml({**recipe, "name": "asking", "model": model, "converter": {"use": "knn_lm_head"}}))
    return path


def test_by_the_commands_a_trained_run_asks_its_own_past(trained, asking, tmp_path, capsys, monkeypatch):
    store, folder = tmp_path / "store", tmp_path / "with"
    make = ["datastore", str(trained), "--folder", str(store)]
    assert main(make) == 0
    assert f"{store}: {Datastore(store).entries:,} entries of 16 numbers" in capsys.readouterr().out
    assert main(make) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["convert", str(trained), "--recipe", str(asking), "--folder", str(folder)]) == 0
    assert main(["evaluate", str(folder), "--measure", "throughput"]) == 2
    assert "cannot train one with a datastore" in capsys.readouterr().err
    two = bakeoff.evaluate.asked(["validation", "throughput"])
    monkeypatch.setattr(bakeoff.evaluate, "asked", lambda _: two)  # where all is measured, for a shorter all
    assert main(["evaluate", str(folder)]) == 0
    assert "throughput is left out: head knn_lm" in capsys.readouterr().err
    measured = read_sealed(folder / "evaluation.json")["measures"]["validation.bits_per_byte"]
    assert measured < load_run(trained).metrics["bits_per_byte"] - 0.2  # sentences come back whole
    assert main(["generate", str(folder), "--prompt", "a", "--max-new-tokens", "3"]) == 0

    assert main([*make, "--search", "hnsw"]) == 0  # of the same datastore
    asks = load_run(folder)
    assert asks.model.head.inner.projection.weight is asks.model.backbone.embedding
    asks.model.head.index = open_index(Datastore(store), "hnsw")
    loader = asks.data.validation(tokens_wanted=51)
    found = evaluate_bits(asks.model, asks.recipe.build("objective"), loader, asks.data.bytes_per_token)
    assert found["bits_per_byte"] == pytest.approx(measured, abs=0.01)


def test_other_weights_than_those_of_the_datastore_are_refused(run, other, recipe, asking, tmp_path):
    build(Source(run), tmp_path / "store", tell=quietly)
    with pytest.raises(UserError, match="is the datastore of other weights than those of"):
        opened(tmp_path / "store", other)
    model = bakeoff.recipe(asking).build("model", vocab_size=run.data.vocab_size, max_length=50)
    made = KNNLMHead().from_run(run.model, model, seed=0)
    assert torch.equal(made["head.inner.projection.weight"], run.model.backbone.embedding)
    with pytest.raises(UserError, match="is the datastore of other weights than this run's"):
        KNNLMHead().from_run(other.model, model, seed=0)
