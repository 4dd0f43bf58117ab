import pytest
from bakeoff.evaluate.tasks.token_classes import CLASSES, token_class, written


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b" the", "letters"),
        (b"'t", "letters"),
        ("é".encode(), "letters"),
        ("学".encode(), "letters"),
        (b" The", "capitalised"),
        (b"NATO", "capitalised"),
        (b"1984", "digits"),
        (b" $3", "digits"),
        (b"  ", "whitespace"),
        (b"\t", "whitespace"),
        (b"\n\n", "newlines"),
        (b" \r\n", "newlines"),
        (b", ", "punctuation"),
        ("“".encode(), "punctuation"),
        (b"_", "punctuation"),
        (b" +=", "operators"),
        (b"-", "operators"),
        ("≤".encode(), "operators"),
        (b"({", "brackets"),
        (b"]", "brackets"),
        (b"$", "other"),
        (b"\xe2", "other"),
        (b"", "other"),
    ],
)
def test_a_token_is_of_one_class(raw, expected):
    assert token_class(raw) == expected
    assert expected in CLASSES


def test_tokens_in_tables_show_their_blanks():
    assert written(b" a\n\t") == "␣a⏎⇥"
    assert written(b"\xe2\x80") == "0xe280"
