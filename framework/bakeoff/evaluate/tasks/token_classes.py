"""Classes of tokens by what they are, whatever the tokenizer."""

from __future__ import annotations

import unicodedata

CLASSES = (
    "letters", "capitalised", "digits", "whitespace", "newlines", "punctuation", "operators", "brackets", "other",
)  # fmt: skip
OPERATORS, BRACKETS = frozenset("+-*/%=<>&|^~"), frozenset("()[]{}⟨⟩«»")


def token_class(raw: bytes) -> str:
    """The class of a token's bytes: that of its first letter or digit, of its first character where it has neither.

    Blank tokens are newlines where they break a line; reserved tokens and pieces of a character are "other".
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return "other"
    shown = text.strip()
    if not shown:
        return "newlines" if "\n" in text or "\r" in text else "whitespace" if text else "other"
    return _class(next((character for character in shown if character.isalnum()), shown[0]))


def _class(character: str) -> str:
    if character.isalpha():
        return "capitalised" if character.isupper() or character.istitle() else "letters"
    if character.isnumeric():
        return "digits"
    if character in BRACKETS:
        return "brackets"
    category = unicodedata.category(character)
    if character in OPERATORS or category == "Sm":
        return "operators"
    return "punctuation" if category.startswith("P") else "other"


def written(raw: bytes) -> str:
    """A token in a table: blanks are made visible, what is no text is in hexadecimal digits."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"0x{raw.hex()}"
    return text.translate({ord(" "): "␣", ord("\n"): "⏎", ord("\r"): "␍", ord("\t"): "⇥"})
