import math

from bakeoff.parts.tokenizers.byte import ByteTokenizer


def test_ids_are_the_bytes_of_utf8() -> None:
    assert ByteTokenizer().encode("🌍") == [240, 159, 140, 141]
    assert len(ByteTokenizer().encode("你好")) == 6
    assert ByteTokenizer().text_size == 256


def test_a_uniform_guess_over_bytes_is_eight_bits_a_byte() -> None:
    made = ByteTokenizer()
    nats_per_token = math.log(made.text_size)
    bytes_per_token = made.bytes_per_token()[made.encode("any text, naïve")].mean()
    assert nats_per_token / bytes_per_token / math.log(2) == 8.0
