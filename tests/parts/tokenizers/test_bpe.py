import random
import sys
import unicodedata
from itertools import pairwise

import pytest
from bakeoff.parts.tokenizers.bpe import BPETokenizer
from bakeoff.parts.tokenizers.byte_level import CHARACTER_OF
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers


def table(made: BPETokenizer) -> list[bytes]:
    return [made.token_bytes(i) for i in range(made.text_size)]


def library_of(made: BPETokenizer) -> Library:
    """The same vocabulary in the library `tokenizers`; a piece's merge is what lower ranks make of its bytes."""

    def written(piece: bytes) -> str:
        return "".join(CHARACTER_OF[byte] for byte in piece)

    ranks = {piece: rank for rank, piece in enumerate(table(made))}
    merges = []
    for piece in table(made)[256:]:
        parts = [bytes([byte]) for byte in piece]
        while len(parts) > 2:
            pairs = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
            place = pairs.index(min(pairs))
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        merges.append((written(parts[0]), written(parts[1])))
    library = Library(models.BPE(vocab={written(piece): rank for piece, rank in ranks.items()}, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library


@pytest.fixture(scope="module")
def trained(source_texts: list[str]) -> BPETokenizer:
    made = BPETokenizer(vocab_size=2048)
    made.train(source_texts[:50])
    assert made.vocab_size == 2048
    return made


def test_the_example_of_wikipedia() -> None:
    made = BPETokenizer(vocab_size=256 + 3 + 3)
    made.train(["aaabdaaabac"])
    assert made.encode("aaabdaaabac") == [258, 100, 258, 97, 99]


def test_ids_are_those_of_the_library_that_trains(
    trained: BPETokenizer, source_texts: list[str], odd_texts: list[str]
) -> None:
    library = library_of(trained)
    texts = [*source_texts, *odd_texts]
    theirs = [encoding.ids for encoding in library.encode_batch_fast(texts)]
    assert trained.encode_batch(texts) == theirs


def test_every_character_is_cut_as_by_the_library_that_trains(trained: BPETokenizer) -> None:
    library, absent = library_of(trained), ("Cs", "Cn", "Co")
    codes = [code for code in range(0, sys.maxunicode, 5) if unicodedata.category(chr(code)) not in absent]
    texts = [
        "".join(f"a{chr(c)}b 1{chr(c)} {chr(c)}{chr(c)}" for c in codes[i : i + 500]) for i in range(0, len(codes), 500)
    ]
    theirs = [encoding.ids for encoding in library.encode_batch_fast(texts)]
    assert trained.encode_batch(texts) == theirs


def test_training_always_gives_one_vocabulary() -> None:
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcd \n", k=60)) for _ in range(200)]
    found = set()
    for _ in range(24):
        made = BPETokenizer(vocab_size=400)
        made.train(rng.sample(texts, len(texts)))
        found.add(tuple(table(made)))
    assert len(found) == 1


def test_no_piece_crosses_a_word() -> None:
    made = BPETokenizer(vocab_size=1000)
    made.train(["the cat the cat 12 12 it's it's\n\n"] * 5)
    pieces = set(table(made)[256:])
    assert {b"the", b" cat", b" 12", b" the"} <= pieces
    assert not any(b" " in piece[1:] or b"\n" in piece[1:-1] for piece in pieces)


def test_a_text_with_too_few_pairs_gives_fewer_ids_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    made = BPETokenizer(vocab_size=5000)
    made.train(["abab"])
    assert made.vocab_size == 256 + 1 + 3
    assert "asked for 5000 ids, got 260" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "x" + " " * 1_200_000 + "y",  # more than the pattern's matcher can go back over
        "\u3000" * 70_000 + "  b" + "\n" * 70_000 + "c" + " " * 70_000,
        "a" * 300_000,
    ],
    ids=["spaces", "runs", "letters"],
)
def test_endless_runs_are_trained_on_and_encoded(text: str) -> None:
    made = BPETokenizer(vocab_size=280)
    made.train([text])
    ids = made.encode(text)
    assert made.decode(ids) == text
    if len(text) < 250_000:
        assert ids == library_of(made).encode(text).ids
