"""Tokenizer `pretrained_tokenizer`: a `tokenizer.json` of the library `tokenizers`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.errors import UserError
from bakeoff.interfaces import Tokenizer
from bakeoff.parts.files import expanded, read_json, write_json, write_whole
from bakeoff.parts.tokenizers.byte_level import BYTE_OF, bytes_of
from bakeoff.parts.tokenizers.text import readable

FILE = "tokenizer.json"
RESERVED_FILE = "reserved.json"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class PretrainedTokenizer(Tokenizer):
    """A tokenizer that was trained elsewhere: its ids, followed by the reserved ids of bakeoff.

    It is `lossless` where its file shows that it is: byte-level, with all 256 bytes in the vocabulary, and without
    anything that changes, drops or adds characters. Of others bits per byte are refused. Its own special tokens are
    neither added to a text nor found in one; they stand for no bytes.

    Parameters
    ----------
    path : the file, or the folder that holds it under the name tokenizer.json.
    end : its own special token that ends a document, such as "<|endoftext|>". With it no ids are added: padding and
        mask have this id too, since a model that was trained elsewhere has no rows for others. Null: three new ids.
    """

    learns = False

    def __init__(self, *, path: str, end: str | None = None):
        from tokenizers import Tokenizer as Library

        place = expanded(path)
        place = place / FILE if place.is_dir() else place
        try:
            self._content = place.read_bytes()
            self._library = Library.from_buffer(self._content)
        except OSError as error:
            raise UserError(f"tokenizer 'pretrained_tokenizer': cannot read {place}: {error.strerror}") from error
        except Exception as error:  # the library raises no narrower class
            raise UserError(
                f"tokenizer 'pretrained_tokenizer': {place} is no tokenizer.json of the library tokenizers: {error}"
            ) from error
        self._library.encode_special_tokens = True
        self._library.no_padding()
        self._library.no_truncation()
        held = json.loads(self._content)
        self.lossless = keeps_all(held)
        self._bytes = _table(held, self._library.get_vocab(with_added_tokens=True))
        self._end = None if end is None else _special(held, end)
        self._end_token = end

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it needs a file from elsewhere."""
        return []

    def train(self, texts: Iterable[str]) -> None:
        pass

    @property
    def text_size(self) -> int:
        return len(self._bytes)

    @property
    def vocab_size(self) -> int:
        return super().vocab_size if self._end is None else self.text_size

    @property
    def padding(self) -> int:
        return super().padding if self._end is None else self._end

    @property
    def end(self) -> int:
        return super().end if self._end is None else self._end

    @property
    def mask(self) -> int:
        return super().mask if self._end is None else self._end

    def encode(self, text: str) -> list[int]:
        return self._library.encode(readable(text), add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        encoded = self._library.encode_batch_fast([readable(text) for text in texts], add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        return [np.asarray(ids, dtype=np.uint32) for ids in self.encode_batch(texts, threads)]

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token] if token < len(self._bytes) else b""

    def decode(self, tokens: Iterable[int]) -> str:
        if self.lossless:
            return super().decode(tokens)
        kept = [int(token) for token in tokens if token < self.text_size]
        return self._library.decode(kept, skip_special_tokens=True)

    def save(self, folder: Path) -> None:
        write_whole(folder / FILE, self._content)
        if self._end_token is not None:
            write_json(folder / RESERVED_FILE, {"end": self._end_token})

    @classmethod
    def load(cls, folder: Path) -> PretrainedTokenizer:
        reserved = read_json(folder / RESERVED_FILE) if (folder / RESERVED_FILE).exists() else {}
        return cls(path=str(folder / FILE), end=reserved.get("end"))


def _special(held: dict[str, Any], token: str) -> int:
    """The id of a special token of a tokenizer.json."""
    special = {added["content"]: added["id"] for added in held["added_tokens"] if added["special"]}
    if token not in special:
        raise UserError(
            f"tokenizer 'pretrained_tokenizer': end is {token!r}, which is no special token of the file; "
            f"it has {', '.join(map(repr, special)) or 'none'}"
        )
    return special[token]


def keeps_all(held: dict[str, Any]) -> bool:
    """Whether the content of a tokenizer.json shows that decoding gives back every text."""
    model, steps = held["model"], _steps(held["pre_tokenizer"])
    vocabulary = model.get("vocab") or {}
    added = [token for token in held["added_tokens"] if not token["special"]]
    return (
        model["type"] == "BPE"
        and held["normalizer"] is None
        and isinstance(vocabulary, dict)
        and all(character in vocabulary for character in BYTE_OF)
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and bool(steps)
        and steps[-1]["type"] == "ByteLevel"
        and all(_keeps(step) for step in steps)
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    )


def _keeps(step: dict[str, Any]) -> bool:
    kind = step["type"]
    if kind == "ByteLevel":
        return not step["add_prefix_space"]
    return kind == "Digits" or (kind == "Split" and step["behavior"] != "Removed")


def _steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    if step is None:
        return []
    return step["pretokenizers"] if step["type"] == "Sequence" else [step]


def _table(held: dict[str, Any], vocabulary: dict[str, int]) -> list[bytes]:
    """The bytes of each id, b"" for special tokens and for ids that no piece has."""
    added = {token["content"]: token["special"] for token in held["added_tokens"]}
    byte_level = any(step["type"] == "ByteLevel" for step in _steps(held["pre_tokenizer"]))
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for piece, number in vocabulary.items():
        if piece in added:
            table[number] = b"" if added[piece] else piece.encode()
        elif byte_level:
            table[number] = bytes_of(piece) or piece.encode()
        elif match := BYTE_PIECE.fullmatch(piece):
            table[number] = bytes([int(match[1], 16)])
        else:
            table[number] = piece.replace("▁", " ").removeprefix("##").encode()
    return table
