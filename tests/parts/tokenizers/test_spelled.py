"""Tokenizers `char` and `word`."""

import re

import pytest
from bakeoff.parts.tokenizers.char import CharTokenizer
from bakeoff.parts.tokenizers.word import WordTokenizer


def test_characters_of_the_training_text_are_one_id_and_others_their_bytes() -> None:
    made = CharTokenizer()
    made.train(["abc é你"])
    assert [len(made.encode(text)) for text in ("a", "é", "你", "好", "ü")] == [1, 1, 1, 3, 2]
    assert made.encode("好ü") == [*"好ü".encode()]
    assert made.vocab_size == 256 + 2 + 3


def test_of_too_many_characters_the_most_frequent_are_kept() -> None:
    made = CharTokenizer(vocab_size=260)
    made.train(["ééé üüü ü öö"])
    assert made.encode("ü") == [256]
    assert made.encode("é") == [*"é".encode()]


def test_words_take_the_space_before_them() -> None:
    made = WordTokenizer(vocab_size=400)
    made.train(["the cat, the mat;\n\n  the end\t\tx"])
    assert [made.token_bytes(i).decode() for i in made.encode("the cat, the\n\n  the end\t\tx")] == [
        "the", " cat", ",", " the", "\n\n ", " the", " end", "\t", "\t", "x",
    ]  # fmt: skip
    assert made.encode("zebra") == [*b"zebra"]


def test_words_are_ranked_by_count_and_then_by_code_point() -> None:
    made = WordTokenizer(vocab_size=256 + 3 + 3)
    made.train(["bb bb bb aa cc dd"])
    learnt = [made.token_bytes(i).decode() for i in range(256, made.text_size)]
    assert learnt == [" bb", " aa", " cc"]


def test_pieces_are_the_text_and_every_character_stands_in_one(odd_texts: list[str]) -> None:
    made = WordTokenizer(vocab_size=300)
    for text in odd_texts:
        assert "".join(made.pieces(text)) == text


@pytest.mark.parametrize("text", ["a b", "hello  world", "x, y"])
def test_a_piece_holds_at_most_one_word(text: str) -> None:
    for piece in WordTokenizer(vocab_size=300).pieces(text):
        assert len(re.findall(r"\w+", piece)) <= 1
