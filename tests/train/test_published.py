"""Published weights become a run that `transformers` agrees with, and go back into files that it reads."""

import json

import bakeoff
import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.train import export_weights, import_weights, load_run
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

transformers = pytest.importorskip("transformers")
END = "<|endoftext|>"
PROMPT = "the cat sat"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder as `transformers` writes it, with a tokenizer.json; and the model in memory."""
    folder = tmp_path_factory.mktemp("published")
    library = Tokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        ["the cat sat on the mat"],
        trainers.BpeTrainer(vocab_size=262, initial_alphabet=alphabet, special_tokens=[END], show_progress=False),
    )
    library.save(str(folder / "tokenizer.json"))
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=262, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    theirs.save_pretrained(folder)
    return folder, theirs


def recipe(folder, **changes):
    small = {
        "model.d_model": 32,
        "model.depth": 2,
        "model.vocab_size": 262,
        "model.blocks.layer.mixer.n_heads": 4,
        "data.length": 32,
        "data.batch_tokens": 32,
        "data.micro_batch": 1,
        "data.corpus": {"use": "python_source"},
        "data.tokenizer": {"use": "pretrained_tokenizer", "path": str(folder), "end": END},
    }
    return bakeoff.recipe("bakeoff:models/gpt2.yaml", {**small, **changes})


def test_an_imported_run_generates_what_transformers_generates(published, tmp_path):
    folder, theirs = published
    import_weights(recipe(folder), folder, tmp_path / "run")
    run = load_run(tmp_path / "run")
    ids = run.tokenizer.encode(PROMPT)
    expected = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12, pad_token_id=0)[0, len(ids) :]
    until_end = expected.tolist()[: expected.tolist().index(0)] if 0 in expected else expected.tolist()
    assert run.generate([PROMPT], max_new_tokens=12) == [run.tokenizer.decode(until_end)]
    assert run.tokenizer.vocab_size == 262
    assert run.metrics["parameters"] == sum(parameter.numel() for parameter in theirs.parameters())


def test_an_exported_run_is_read_by_transformers(published, tmp_path):
    folder, theirs = published
    run = import_weights(recipe(folder), folder, tmp_path / "run")
    path = export_weights(run, tmp_path / "back")
    (path.parent / "config.json").write_text((folder / "config.json").read_text())
    again = transformers.GPT2LMHeadModel.from_pretrained(path.parent)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert set(load_file(path)) == set(load_file(folder / "model.safetensors"))


def test_the_command_goes_both_ways(published, tmp_path, capsys):
    folder, _ = published
    values = [f"{path}={json.dumps(value)}" for path, value in flat(recipe(folder).tree)]
    arguments = ["--recipe", "bakeoff:models/gpt2.yaml", "--folder", str(tmp_path / "run")]
    assert main(["convert", str(folder), *arguments, *values]) == 0
    assert main(["convert", str(tmp_path / "run"), "--folder", str(tmp_path / "back")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "run"), str(tmp_path / "back" / "model.safetensors")]
    back, there = load_file(tmp_path / "back" / "model.safetensors"), load_file(folder / "model.safetensors")
    assert all(torch.equal(back[name], there[name]) for name in there)


def flat(tree):
    """The values of `recipe` above, as a command line would give them."""
    mixer = tree["model"]["blocks"]["layer"]["mixer"]
    yield from ((f"model.{key}", tree["model"][key]) for key in ("d_model", "depth", "vocab_size"))
    yield "model.blocks.layer.mixer.n_heads", mixer["n_heads"]
    yield from ((f"data.{key}", tree["data"][key]) for key in ("length", "batch_tokens", "micro_batch", "tokenizer"))
    yield "data.corpus", tree["data"]["corpus"]


@pytest.mark.parametrize(
    ("slip", "named"),
    [
        (lambda weights: weights.pop("transformer.h.1.ln_2.bias"), "transformer.h.1.ln_2.bias"),
        (lambda weights: weights.update({"transformer.h.2.ln_1.bias": torch.zeros(32)}), "transformer.h.2.ln_1.bias"),
        (
            lambda weights: weights.update({"transformer.ln_f.bias": torch.zeros(31)}),
            r"transformer.ln_f.bias is \(31,\)",
        ),
        (lambda weights: weights.update({"transformer.ln_f.bias": torch.full((32,), torch.nan)}), "not finite"),
        (lambda weights: weights.update({"lm_head.weight": torch.zeros(262, 32)}), "tied_embedding: false"),
    ],
    ids=["missing", "left over", "shape", "not finite", "not tied"],
)
def test_what_does_not_fit_is_named_and_nothing_is_made(published, tmp_path, slip, named):
    folder, _ = published
    weights = load_file(folder / "model.safetensors")
    slip(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=named):
        import_weights(recipe(folder), tmp_path / "model.safetensors", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_formats_that_may_run_code_are_refused(published, tmp_path):
    folder, _ = published
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    for source in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(UserError, match=r"no \*\.safetensors"):
            import_weights(recipe(folder), source, tmp_path / "run")


def test_a_file_that_is_cut_short_is_refused(published, tmp_path):
    folder, _ = published
    whole = (folder / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="damaged"):
        import_weights(recipe(folder), tmp_path, tmp_path / "run")


def test_a_tokenizer_that_would_learn_other_ids_is_refused(published, tmp_path):
    folder, _ = published
    changes = {"data.tokenizer": {"use": "bpe", "vocab_size": 262}}
    with pytest.raises(UserError, match="bpe would learn other ids"):
        import_weights(recipe(folder, **changes), folder, tmp_path / "run")


def test_more_ids_than_rows_is_refused(published, tmp_path):
    folder, _ = published
    changes = {"data.tokenizer": {"use": "pretrained_tokenizer", "path": str(folder)}}
    with pytest.raises(UserError, match=r"model.vocab_size.* is 262, and the tokenizer has 265"):
        import_weights(recipe(folder, **changes), folder, tmp_path / "run")


def test_a_recipe_without_a_converter_is_refused(published, tmp_path):
    folder, _ = published
    with pytest.raises(UserError, match="converter"):
        import_weights(recipe(folder, converter=None), folder, tmp_path / "run")


def test_an_export_that_is_refused_names_the_file_and_leaves_none(published, tmp_path, monkeypatch):
    folder, _ = published
    run = import_weights(recipe(folder), folder, tmp_path / "run")

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(UserError, match=r"cannot write .*model\.safetensors: I/O error: No space left"):
        export_weights(run, tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []
