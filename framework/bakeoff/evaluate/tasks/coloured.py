"""Texts coloured by a number for each of their characters, as HTML."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from html import escape
from itertools import groupby

from bakeoff.interfaces.tokenizer import Tokenizer

#: Shades from nothing to the strongest, on each side of zero.
SHADES = 6
#: Red, green and blue of the positive and of the negative side, apart for colour-blind eyes too.
POSITIVE, NEGATIVE = "37 99 235", "217 95 2"


def characters(tokenizer: Tokenizer, ids: Items[int], values: Items[float]) -> Iterator[tuple[str, float]]:
    """The characters of a text with the value of the token that completes each; a token's characters share it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token, value in zip(ids, values, strict=True):
        for character in decoder.decode(tokenizer.token_bytes(int(token))):
            yield character, value


def style() -> str:
    """The shades, once a page; `coloured` uses them."""
    shades = [
        f".shades .{name}{level} {{ background: rgb({colour} / {0.5 * level / SHADES:.2f}) }}"
        for name, colour in (("p", POSITIVE), ("n", NEGATIVE))
        for level in range(1, SHADES + 1)
    ]
    text = ".shades { font-family: ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; line-height: 1.7 }"
    return f"<style>{text} {' '.join(shades)}</style>"


def coloured(text: Iterable[tuple[str, float]], largest: float) -> str:
    """A paragraph of `(character, value)`: full colour at `largest`, none at 0."""
    runs = groupby(text, lambda pair: shade(pair[1], largest))
    pieces = [(name, escape("".join(character for character, _ in run))) for name, run in runs]
    spans = [f"<span class={name}>{piece}</span>" if name else piece for name, piece in pieces]
    return f'<p class="shades">{"".join(spans)}</p>'


def shade(value: float, largest: float) -> str:
    """The class of a value: p1 to p6, n1 to n6, or "" near zero."""
    level = min(SHADES, round(SHADES * abs(value) / largest)) if largest else 0
    return f"{'p' if value > 0 else 'n'}{level}" if level else ""
