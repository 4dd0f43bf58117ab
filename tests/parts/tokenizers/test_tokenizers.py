"""What holds for every tokenizer that calls itself lossless."""

from pathlib import Path

import numpy as np
import pytest
from bakeoff.errors import UserError
from bakeoff.interfaces import Tokenizer
from bakeoff.interfaces.tokenizer import RESERVED
from bakeoff.parts.tokenizers.bpe import BPETokenizer
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.parts.tokenizers.char import CharTokenizer
from bakeoff.parts.tokenizers.word import WordTokenizer

TRAINING = ["the cat sat on the mat, the café naïve café 你好 你好\n", "The cat's hat.\n\n  indented 123\n"]
MAKERS = {
    "byte": ByteTokenizer,
    "char": CharTokenizer,
    "few characters": lambda: CharTokenizer(vocab_size=261),
    "word": lambda: WordTokenizer(vocab_size=300),
    "few words": lambda: WordTokenizer(vocab_size=262),
    "bpe": lambda: BPETokenizer(vocab_size=280),
}


@pytest.fixture(params=MAKERS, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made = MAKERS[request.param]()
    made.train(TRAINING)
    return made


def test_decode_gives_back_every_text(tokenizer: Tokenizer, odd_texts: list[str]) -> None:
    assert tokenizer.lossless
    for text in [*odd_texts, *TRAINING]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_untrained_it_is_lossless_too(odd_texts: list[str]) -> None:
    for make in MAKERS.values():
        made = make()
        for text in odd_texts:
            ids = made.encode(text)
            assert made.decode(ids) == text
            assert all(0 <= token < made.text_size for token in ids)


def test_what_stands_in_a_text_is_never_a_control_id(tokenizer: Tokenizer, odd_texts: list[str]) -> None:
    names = [f"<{name}>" for name in RESERVED] + [f"<|{name}|>" for name in ("endoftext", *RESERVED)]
    for text in [*odd_texts, *names]:
        assert all(0 <= token < tokenizer.text_size for token in tokenizer.encode(text))


def test_bytes_of_ids_add_up_to_the_bytes_of_the_text(tokenizer: Tokenizer, odd_texts: list[str]) -> None:
    table = tokenizer.bytes_per_token()
    assert table.shape == (tokenizer.vocab_size,)
    assert table[tokenizer.text_size :].tolist() == [0] * len(RESERVED)
    for text in odd_texts:
        assert table[tokenizer.encode(text)].sum() == len(text.encode())


def test_batches_and_arrays_hold_the_same_ids(tokenizer: Tokenizer, odd_texts: list[str]) -> None:
    single = [tokenizer.encode(text) for text in odd_texts]
    for threads in (1, 3):
        assert tokenizer.encode_batch(odd_texts, threads) == single
        arrays = tokenizer.encode_arrays(odd_texts, threads)
        assert all(array.dtype.kind == "u" and array.ndim == 1 for array in arrays)
        assert [array.tolist() for array in arrays] == single


def test_reserved_ids_follow_the_text_ids_and_decode_to_nothing(tokenizer: Tokenizer) -> None:
    reserved = [tokenizer.padding, tokenizer.end, tokenizer.mask]
    assert reserved == list(range(tokenizer.text_size, tokenizer.vocab_size))
    assert tokenizer.decode([*reserved, *tokenizer.encode("x"), *reserved]) == "x"


def test_lone_surrogates_become_the_replacement_character_and_pairs_their_character(tokenizer: Tokenizer) -> None:
    for text, read in [
        ("\ud800", "\ufffd"),
        ("a\udfffb", "a\ufffdb"),
        ("\ud83d\ude42", "🙂"),
        ("\ude42\ud83d", "\ufffd\ufffd"),
    ]:
        assert tokenizer.decode(tokenizer.encode(text)) == read
        assert tokenizer.decode(np.concatenate(tokenizer.encode_arrays([text, "z"]))) == read + "z"


def test_what_is_saved_is_what_is_loaded(tokenizer: Tokenizer, odd_texts: list[str], tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    loaded = type(tokenizer).load(tmp_path)
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode_batch(odd_texts) == tokenizer.encode_batch(odd_texts)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    loaded.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_saved_untrained_it_is_loaded_untrained(make: type[Tokenizer], tmp_path: Path) -> None:
    untrained = make()
    untrained.save(tmp_path)
    loaded = type(untrained).load(tmp_path)
    assert loaded.vocab_size == untrained.vocab_size
    loaded.train(TRAINING)
    untrained.train(TRAINING)
    assert [loaded.token_bytes(i) for i in range(loaded.vocab_size)] == [
        untrained.token_bytes(i) for i in range(untrained.vocab_size)
    ]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_order_of_texts_does_not_matter(make: type[Tokenizer]) -> None:
    forward, backward = make(), make()
    forward.train(TRAINING)
    backward.train(reversed(TRAINING))
    table = [[made.token_bytes(i) for i in range(made.vocab_size)] for made in (forward, backward)]
    assert table[0] == table[1]


@pytest.mark.parametrize("kind", [CharTokenizer, WordTokenizer, BPETokenizer])
def test_the_size_counts_bytes_and_reserved_ids(kind: type[Tokenizer]) -> None:
    assert kind(vocab_size=259).vocab_size == 259
    with pytest.raises(UserError, match=r"258.*at least 259"):
        kind(vocab_size=258)
    made = kind(vocab_size=262)
    assert made.vocab_size == 262
    made.train(TRAINING * 3)
    assert made.vocab_size == 262
