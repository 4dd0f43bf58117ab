import random

import pytest
from bakeoff.interfaces import Tokenizer
from bakeoff.parts.tokenizers.bpe import BPETokenizer
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.parts.tokenizers.streaming import StreamDecoder


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [*(decoder.push(token) for token in ids), decoder.flush()]


def test_pieces_come_when_characters_are_complete() -> None:
    assert stream(ByteTokenizer(), [*"€é🤗".encode()]) == ["", "", "€", "", "é", "", "", "", "🤗", ""]


@pytest.mark.parametrize("make", [ByteTokenizer, lambda: BPETokenizer(vocab_size=300)])
def test_joined_pieces_are_the_whole_text(make: type[Tokenizer], odd_texts: list[str]) -> None:
    tokenizer = make()
    tokenizer.train(odd_texts)
    for text in odd_texts:
        assert "".join(stream(tokenizer, tokenizer.encode(text))) == text


def test_ids_that_spell_no_utf8_stream_as_they_decode() -> None:
    rng, tokenizer = random.Random(0), ByteTokenizer()
    for _ in range(500):
        ids = rng.choices([*range(256), 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xED, 0xA0, 0x80, 256, 257], k=rng.randrange(12))
        pieces = stream(tokenizer, ids)
        assert "".join(pieces) == tokenizer.decode(ids)


def test_a_character_that_stays_open_is_replaced_at_the_end() -> None:
    assert stream(ByteTokenizer(), [0xE2, 0x82]) == ["", "", "\ufffd"]
