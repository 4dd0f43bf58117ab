"""What every tokenizer takes for text: that which UTF-8 can hold."""

from __future__ import annotations


def readable(text: str) -> str:
    """The text without surrogates, which UTF-8 lacks: a pair becomes the character it spells, a lone one U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def utf8(text: str) -> bytes:
    """The text in UTF-8, made `readable` first where that is needed."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return readable(text).encode()
