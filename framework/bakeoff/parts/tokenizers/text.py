"""What every tokenizer takes for text: that which UTF-8 can hold."""

from __future__ import annotations


def well_formed(text: str) -> str:
    """The text without surrogates, which UTF-8 lacks: a pair becomes the character it spells, a lone one U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def utf8(text: str) -> bytes:
    """The text in UTF-8, made `well_formed` first where that is needed."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return well_formed(text).encode()
