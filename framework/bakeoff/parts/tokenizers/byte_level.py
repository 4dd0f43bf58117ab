"""Byte-level BPE as in GPT-2 (Radford et al. 2019): how text is cut, and how its files write bytes as characters."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Words with the space before them, numbers, runs of marks, white space. The quantifiers of the runs are possessive
#: and a run at the end of the text has its own branch, which changes no match and saves the matcher its way back.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


#: Unicode's property White_Space, which the pattern's white-space class stands for.
WHITE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

#: A run of white space so long that the matcher, which goes back over it step by step, would run out of room.
LONG = 2**16
LONG_RUN = re.compile(rf"(?<![{WHITE}])[{WHITE}]{{{LONG}}}[{WHITE}]*")


def manageable(text: str) -> Iterator[str]:
    """The text in parts that the matcher can take, and that it cuts as it would cut the whole."""
    start = 0
    if len(text) >= LONG:
        for run in LONG_RUN.finditer(text):
            if run.end() < len(text):  # the run's last character goes with what follows
                yield text[start : run.end() - 1]
                start = run.end() - 1
    yield text[start:]


#: No piece longer than this is trained on: time grows with the square of a piece's length.
ENDLESS = re.compile(r"\S{1024}|\s{1024}")


def trainable(text: str) -> Iterator[str]:
    """The text in parts, cut inside of runs of white space, or of anything else, that are longer than 1024."""
    start = 0
    for run in ENDLESS.finditer(text):
        yield text[start : run.end()]
        start = run.end()
    yield text[start:]


def _characters() -> dict[str, int]:
    """Character -> byte. Printable bytes of Latin-1 stand for themselves, the others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + number): byte for number, byte in enumerate(others)}


BYTE_OF = _characters()
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def bytes_of(piece: str) -> bytes | None:
    """The bytes that a vocabulary entry writes as characters; None if it is no such writing."""
    found = [BYTE_OF.get(character) for character in piece]
    return None if None in found else bytes(byte for byte in found if byte is not None)
