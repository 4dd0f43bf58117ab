"""A retriever small enough to be checked by hand, and data that retrieves by it."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bakeoff.data import Data
from bakeoff.data.retrieval import Retrieval
from bakeoff.errors import UserError
from bakeoff.interfaces.retriever import Found, Index, Retriever
from bakeoff.parts.tokenizers.byte import ByteTokenizer


def histogram(text: str) -> np.ndarray:
    """How often each byte stands in a text."""
    return np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=256)


class Letters(Retriever):
    """By how many letters two texts differ, whatever their order; among equals the first."""

    AT_ONCE = 7

    def __init__(self, *, salt: str = ""):
        self.salt = salt

    def fingerprint(self) -> str:
        return hashlib.sha256(f"letters {self.salt}".encode()).hexdigest()[:16]

    def build(self, texts, folder: Path, progress: Callable[[int], None]) -> None:  # type: ignore[no-untyped-def]
        path = folder / "histograms"
        done = path.stat().st_size // (256 * 8) if path.exists() else 0
        progress(done)
        with open(path, "ab") as file:
            file.truncate(done * 256 * 8)
            for start in range(done, len(texts), self.AT_ONCE):
                for text in texts[start : start + self.AT_ONCE]:
                    file.write(histogram(text).astype("<i8").tobytes())
                    progress(1)

    def load(self, folder: Path, texts) -> Index:  # type: ignore[no-untyped-def]
        held = np.fromfile(folder / "histograms", "<i8")
        if len(held) != 256 * len(texts):
            raise UserError(f"{folder / 'histograms'} is cut short")
        return LettersIndex(held.reshape(-1, 256))


class LettersIndex(Index):
    def __init__(self, held: np.ndarray):
        self.held = held

    def neighbours(self, queries, k: int, exclude: np.ndarray | None = None) -> Found:  # type: ignore[no-untyped-def]
        numbers = np.full((len(queries), k), -1)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        for row, query in enumerate(queries):
            apart = np.abs(self.held - histogram(query)).sum(1).astype(float)
            if exclude is not None:
                apart[exclude[row, 0] : exclude[row, 1]] = np.inf
            best = np.argsort(apart, kind="stable")[:k]
            best = best[np.isfinite(apart[best])]
            numbers[row, : len(best)], scores[row, : len(best)] = best, -apart[best]
        return Found(numbers, scores)


@pytest.fixture
def letters() -> type[Letters]:
    return Letters


@pytest.fixture
def retrieving(tmp_path: Path, documents: type) -> Callable[..., Data]:
    """Prepared data of some texts under the byte tokenizer that retrieve; what is no argument of data is of theirs."""

    def made(train: list[str], validation: list[str] | None = None, **arguments: object) -> Data:
        corpus = documents(train, train if validation is None else validation)
        settings = {"length": 16, "batch_tokens": 64, "cache": str(tmp_path / "cache")}
        asked = {"retriever": Letters(), "chunk": 4}
        for name, value in arguments.items():
            (asked if name in Retrieval.__dataclass_fields__ and name != "corpus" else settings)[name] = value
        if "database" in settings:
            asked["corpus"] = settings.pop("database")
        return Data(corpus=corpus, tokenizer=ByteTokenizer(), retrieval=Retrieval(**asked), **settings).prepare(
            progress=False
        )

    return made


@pytest.fixture
def ragged() -> list[str]:
    """Forty documents of 0 to 40 letters, some of them copies of others."""
    rng = random.Random(3)
    texts = ["".join(rng.choices("abcdefgh", k=rng.randrange(41))) for _ in range(30)]
    return [*texts[:10], "", *texts[5:15], *texts[10:], "abcd"]
