"""Tokenizers: text is data, nothing is lost, and the same texts give the same ids."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bakeoff.interfaces.tokenizer import RESERVED, Tokenizer
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law

_TRAINING = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox does not.\n",
    "def answer(n):\n    return n * 42  # forty-two\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n",
    "In the beginning was the word, and the word was with the others.\n",
] * 3

#: Smallest first, so that the first that fails is the smallest.
_TEXTS = [
    "", "a", " ", "\n", "\x00", "é", "e\u0301", "\u00a0", "字", "🤗", "🏳️‍🌈", "\ufeff", "\u202e", "  ", "\r\n", "\t\n ",
    "</s>",
    "[PAD]", "[MASK]", "<unk>", "<pad>", "<|end|>", "<|mask|>", "<|padding|>", "<|endoftext|>", "a<|endoftext|>b",
    "ﬁ Å Ⅳ", " leading and trailing ", "The fox\tand the\r\n\r\ndog", "0123456789" * 3, "未知の文字列 ☃ naïve",
]  # fmt: skip


@law(None, "lossless", "tokenizer")
def lossless(candidate: Candidate) -> None:
    """decode(encode(text)) is the text; no text gives a reserved id; bytes are counted as they are."""
    tokenizer = _trained(candidate)
    for text in _TEXTS + _TRAINING:
        ids = tokenizer.encode(text)
        control = [token for token in ids if not 0 <= token < tokenizer.text_size]
        if control:
            raise Broken(f"encode({text!r}) gives {control[0]}, which is no text id (0 to {tokenizer.text_size - 1})")
        if not tokenizer.lossless:
            continue
        if tokenizer.decode(ids) != text:
            raise Broken(f"decode(encode({text!r})) is {tokenizer.decode(ids)!r}")
        counted, there = int(tokenizer.bytes_per_token()[ids].sum()) if ids else 0, len(text.encode())
        if counted != there:
            raise Broken(f"bytes_per_token counts {counted} bytes in {text!r}, which has {there}")


@law(None, "ids", "tokenizer")
def ids(candidate: Candidate) -> None:
    """Reserved ids follow the text ids and stand for no bytes; batches and threads change nothing."""
    tokenizer = _trained(candidate)
    reserved = [tokenizer.padding, tokenizer.end, tokenizer.mask]
    if reserved != list(range(tokenizer.text_size, tokenizer.text_size + len(RESERVED))):
        raise Broken(f"{', '.join(RESERVED)} are {reserved}; they must follow the {tokenizer.text_size} text ids")
    if tokenizer.vocab_size != tokenizer.text_size + len(RESERVED):
        raise Broken(f"vocab_size is {tokenizer.vocab_size}, not {tokenizer.text_size} + {len(RESERVED)}")
    for token in reserved:
        if tokenizer.token_bytes(token) != b"" or tokenizer.bytes_per_token()[token] != 0:
            raise Broken(f"reserved id {token} stands for bytes")
    each = [tokenizer.encode(text) for text in _TEXTS]
    for threads in (1, 2):
        for name in ("encode_batch", "encode_arrays"):
            together = [list(map(int, found)) for found in getattr(tokenizer, name)(_TEXTS, threads=threads)]
            for text, one, other in zip(_TEXTS, each, together, strict=True):
                if one != other:
                    raise Broken(f"{name}(…, threads={threads}) gives other ids for {text!r} than encode")


@law(None, "training", "tokenizer")
def training(candidate: Candidate) -> None:
    """The same texts in any order give the same tokenizer, and none if it does not learn; saved is what is loaded."""
    tokenizer = _trained(candidate)
    if _told(tokenizer) != _told(_trained(candidate, _TRAINING[::-1])):
        raise Broken("trained on the same texts in reverse order, it gives other ids")
    if not tokenizer.learns and _told(tokenizer) != _told(_trained(candidate, [])):
        raise Broken("it claims not to learn, but gives other ids once it is trained")
    with TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        loaded = type(tokenizer).load(Path(folder))
    if _told(tokenizer) != _told(loaded):
        raise Broken("saved and loaded, it gives other ids")


def _trained(candidate: Candidate, texts: list[str] = _TRAINING) -> Tokenizer:
    tokenizer = candidate.build()
    tokenizer.train(iter(texts))
    return tokenizer


def _told(tokenizer: Tokenizer) -> tuple[Any, ...]:
    return tokenizer.text_size, *(tuple(tokenizer.encode(text)) for text in _TEXTS + _TRAINING)
