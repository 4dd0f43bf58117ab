"""Tokenizer `bpe`: byte-level byte-pair encoding."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bakeoff.errors import UserError
from bakeoff.interfaces import Reference, Tokenizer
from bakeoff.interfaces.tokenizer import RESERVED
from bakeoff.parts.files import read_json, write_json
from bakeoff.parts.tokenizers.byte_level import PATTERN, bytes_of, manageable, trainable
from bakeoff.parts.tokenizers.text import readable

if TYPE_CHECKING:
    import tiktoken

logger = logging.getLogger(__name__)
R = TypeVar("R")

FILE = "tokenizer.json"
BYTES = 256
LEAST_COUNT = 2


class BPETokenizer(Tokenizer):
    """Ids 0 to 255 are single bytes; id 256 + i is what merge i made.

    Trained by the library `tokenizers`: text is cut by GPT-2's pattern, and the most frequent adjacent pair inside the
    pieces is merged again and again (of equally frequent ones, the pair of the smallest ids), as long as it stands
    there twice. Encoded by the library `tiktoken` built from those merges, which gives the same ids. Nothing in a
    text is a control id. Until it is trained it has the size that is asked for, and spells all text in bytes.

    Parameters
    ----------
    vocab_size : how many ids there are, the 256 bytes and the reserved ids included; fewer if the text holds no more
        pairs to merge, which is logged.
    """

    reference = Reference(
        "Sennrich, R.; Haddow, B.; Birch, A.", 2016,
        "Neural machine translation of rare words with subword units", "https://arxiv.org/abs/1508.07909",
    )  # fmt: skip

    def __init__(self, *, vocab_size: int):
        least = BYTES + len(RESERVED)
        if vocab_size < least:
            raise UserError(
                f"tokenizer 'bpe': vocab_size is {vocab_size}; it counts the {BYTES} bytes and {len(RESERVED)} "
                f"reserved ids too, so it must be at least {least}"
            )
        self._asked = vocab_size
        self._learn(None)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Without any merge, and with some."""
        return [{"vocab_size": 259}, {"vocab_size": 300}]

    def train(self, texts: Iterable[str]) -> None:
        from tokenizers import Tokenizer as Trained
        from tokenizers import models, pre_tokenizers, trainers

        trained = Trained(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        trainer = trainers.BpeTrainer(
            vocab_size=self._asked - len(RESERVED),
            min_frequency=LEAST_COUNT,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        trained.train_from_iterator((part for text in texts for part in trainable(readable(text))), trainer)
        merges = json.loads(trained.to_str())["model"]["merges"]
        made = dict.fromkeys(bytes_of(left + right) for left, right in merges)
        self._learn([piece for piece in made if piece is not None])
        if self.vocab_size < self._asked:
            logger.warning(
                "tokenizer 'bpe': asked for %d ids, got %d: the text holds no more pairs that stand there %d times",
                self._asked, self.vocab_size, LEAST_COUNT,
            )  # fmt: skip

    @property
    def text_size(self) -> int:
        return len(self._bytes) if self._pieces is not None else self._asked - len(RESERVED)

    def encode(self, text: str) -> list[int]:
        return self._encode_array(text).tolist()

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return _over(self.encode, texts, threads)

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        return _over(self._encode_array, texts, threads)

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token] if token < len(self._bytes) else b""

    def save(self, folder: Path) -> None:
        pieces = None if self._pieces is None else [piece.hex() for piece in self._pieces]
        write_json(folder / FILE, {"tokenizer": "bpe", "vocab_size": self._asked, "pieces": pieces})

    @classmethod
    def load(cls, folder: Path) -> BPETokenizer:
        content = read_json(folder / FILE)
        tokenizer = cls(vocab_size=content["vocab_size"])
        if content["pieces"] is not None:
            tokenizer._learn([bytes.fromhex(piece) for piece in content["pieces"]])
        return tokenizer

    def _learn(self, pieces: list[bytes] | None) -> None:
        self._pieces = pieces
        self._bytes = [bytes([byte]) for byte in range(BYTES)] + (pieces or [])
        self.__dict__.pop("_encoding", None)

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        import tiktoken

        ranks = {piece: rank for rank, piece in enumerate(self._bytes)}
        # never matched, since no call allows it; without one the search for special tokens stops at every byte
        idle = {"\U0010ffff": len(ranks)}
        return tiktoken.Encoding("bakeoff_bpe", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=idle)

    def _encode_array(self, text: str) -> np.ndarray:
        parts = list(manageable(readable(text)))
        encoded = [self._encoding.encode_to_numpy(part, disallowed_special=()) for part in parts]
        return encoded[0] if len(encoded) == 1 else np.concatenate(encoded)


def _over(encode: Callable[[str], R], texts: Sequence[str], threads: int) -> list[R]:
    """`encode` of each text; tiktoken lets other threads run meanwhile."""
    if threads == 1 or len(texts) == 1:
        return [encode(text) for text in texts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(encode, texts))
