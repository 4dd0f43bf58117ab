import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bakeoff.data import Data
from bakeoff.interfaces import Corpus
from bakeoff.parts.tokenizers.byte import ByteTokenizer


class Documents(Corpus):
    """Given texts."""

    licence = "none"

    def __init__(self, train: list[str], validation: list[str]):
        self.splits = {"train": train, "validation": validation}

    def documents(self, split: str) -> Iterator[str]:
        return iter(self.splits[split])

    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self.splits).encode()).hexdigest()

    def size(self) -> int:
        return sum(len(text.encode()) for texts in self.splits.values() for text in texts)


@pytest.fixture
def documents() -> type[Documents]:
    return Documents


@pytest.fixture
def texts() -> list[str]:
    """Three hundred texts of 0 to 400 characters."""
    rng = random.Random(0)
    return ["".join(rng.choices("abc é\n", k=rng.randrange(400))) for _ in range(300)]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Data]:
    """Prepared data of some texts under the byte tokenizer, in a cache of the test's own."""

    def made(train: list[str], validation: list[str] | None = None, **arguments: object) -> Data:
        corpus = Documents(train, train if validation is None else validation)
        settings = {"length": 8, "batch_tokens": 64, "cache": str(tmp_path / "cache"), **arguments}
        return Data(corpus=corpus, tokenizer=ByteTokenizer(), **settings).prepare(progress=False)

    return made
