"""Retrievers: what is found is of the database, not excluded, and the same however it is asked and built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bakeoff.errors import UserError
from bakeoff.interfaces.retriever import Found, Index, Retriever
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, NotApplicable, law

_WHO = (
    "a smith",
    "the old queen",
    "my neighbour",
    "every judge",
    "a tired clerk",
    "the captain",
    "one witness",
    "a bee",
)
_WHAT = ("sold the mill", "crossed a river", "wrote to parliament", "opened the gate", "counted stars")
_TEXTS = [f"{who} {what} in town {8 * i + j}" for i, what in enumerate(_WHAT) for j, who in enumerate(_WHO)]
#: Neighbours asked for.
_K = 3
#: How far a score may be from another computation's of the same.
_NEAR = 1e-4


class Killed(Exception):
    """Stands for what ends a process."""


@law(None, "search", "retriever")
def search(candidate: Candidate) -> None:
    """A text of the database is found first (not by a control arm), in exact search too; -1 where there are no more.

    Numbers are different chunks, scores fall, and queries asked one by one find what a batch of them does.
    """
    retriever = candidate.build()
    with TemporaryDirectory() as folder:
        index = _index(retriever, folder)
        for name in ("neighbours", "exact"):
            ask = getattr(index, name)
            found = ask(_TEXTS, _K)
            _sound(found, _K, name)
            if not retriever.control and found.numbers[:, 0].tolist() != list(range(len(_TEXTS))):
                row = next(row for row, number in enumerate(found.numbers[:, 0]) if row != number)
                raise Broken(f"{name} of chunk {row}'s own text finds {found.numbers[row].tolist()}")
            _sound(ask(_TEXTS[:2], len(_TEXTS) + 5), len(_TEXTS) + 5, name)
            for row, text in enumerate(_TEXTS):
                alone = Found(*(part[0] for part in ask([text], _K)))
                _same(alone, Found(found.numbers[row], found.scores[row]), f"{name} of chunk {row}'s text alone")


@law(None, "exclusion", "retriever")
def exclusion(candidate: Candidate) -> None:
    """No chunk of an excluded range is found, and others take its place; an empty range excludes nothing."""
    total = len(_TEXTS)
    ranges = [(0, 1), (0, total - _K), (3, total), (10, 20), (-5, 5), (total - 1, total + 9), (0, total), (7, 7)]
    with TemporaryDirectory() as folder:
        index = _index(candidate.build(), folder)
        for name in ("neighbours", "exact"):
            ask = getattr(index, name)
            for first, last in ranges:
                exclude = np.tile(np.array([[first, last]], np.int64), (total, 1))
                found = ask(_TEXTS, _K, exclude)
                _sound(found, _K, name)
                if ((found.numbers >= max(0, first)) & (found.numbers < last)).any():
                    raise Broken(f"{name} finds a chunk of [{first}, {last}), which is excluded")
                left = [number for number in range(total) if not first <= number < last]
                if (found.numbers[:, 0] < 0).any() and left:
                    raise Broken(f"{name} finds nothing for a text, and {len(left)} of {total} chunks are not excluded")
                if first == last:
                    _same(found, ask(_TEXTS, _K), f"{name} with an empty range excluded")


@law(None, "index", "retriever")
def whole(candidate: Candidate) -> None:
    """Two builds find the same; so does one that was killed and called again. Progress is told of each text once."""
    texts = [f"{text} and in street {street}" for street in range(15) for text in _TEXTS]
    retriever, again = candidate.build(), candidate.build()
    if not (retriever.fingerprint() and retriever.fingerprint() == again.fingerprint()):
        raise Broken("two objects with the same arguments have different fingerprints, or none")
    if retriever.described() != again.described():
        raise Broken("two objects with the same arguments are described differently")
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        told: list[int] = []
        found = _index(retriever, one, texts, told.append).neighbours(texts[:50], _K)
        _counted(told, len(texts), "a build")
        for killed_at in (1, 2):
            if killed_at <= len(told):
                _killed(again, other, texts, killed_at)
        told.clear()
        after = _index(again, other, texts, told.append).neighbours(texts[:50], _K)
        _counted(told, len(texts), "a build after a kill")
        _same(after, found, "an index whose building was killed")
        told.clear()
        _same(_index(retriever, one, texts, told.append).neighbours(texts[:50], _K), found, "an index built twice")


@law(None, "cut short", "retriever")
def cut_short(candidate: Candidate) -> None:
    """A file that is cut short, or not there, is a `UserError` that names it."""
    retriever = candidate.build()
    with TemporaryDirectory() as folder:
        retriever.build(_TEXTS, Path(folder), lambda more: None)
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.stat().st_size]
        if not files:
            raise NotApplicable("it writes no file")
        for path in files:
            content = path.read_bytes()
            for kept in (len(content) - 1, len(content) // 2, 0):
                path.write_bytes(content[:kept])
                _refused(retriever, path, f"{kept} of {len(content)} bytes of {path.name}")
            path.unlink()
            _refused(retriever, path, f"no {path.name}")
            path.write_bytes(content)


def _index(
    retriever: Retriever, folder: str, texts: list[str] = _TEXTS, progress: Callable[[int], None] = lambda more: None
) -> Index:
    retriever.build(texts, Path(folder), progress)
    return retriever.load(Path(folder), texts)


def _killed(retriever: Retriever, folder: str, texts: list[str], at: int) -> None:
    """Build until progress was told `at` times."""
    calls = 0

    def progress(more: int) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Killed

    try:
        retriever.build(texts, Path(folder), progress)
    except Killed:
        return
    raise Broken(f"build goes on when progress, told {calls} times, raises")


def _counted(told: list[int], texts: int, what: str) -> None:
    if sum(told) != texts:
        raise Broken(f"{what} of {texts} texts tells progress of {sum(told)}")


def _sound(found: Found, k: int, name: str) -> None:
    """Numbers of the database, none of them twice, those found first; scores that fall."""
    numbers, scores = found
    if (
        numbers.dtype != np.int64
        or scores.dtype != np.float32
        or numbers.shape[1] != k
        or scores.shape != numbers.shape
    ):
        raise Broken(f"{name} gives {numbers.dtype} {numbers.shape} and {scores.dtype} {scores.shape}, k is {k}")
    for row, score in zip(numbers, scores, strict=True):
        there = row[row >= 0].tolist()
        if row.tolist() != there + [-1] * (k - len(there)):
            raise Broken(f"{name} gives {row.tolist()}: -1 belongs behind what was found, and nothing else is negative")
        if len(set(there)) < len(there) or any(number >= len(_TEXTS) for number in there):
            raise Broken(f"{name} gives {there}: numbers must differ, and be below the {len(_TEXTS)} of the database")
        if (np.diff(score[: len(there)]) > 0).any() or not np.isneginf(score[len(there) :]).all():
            raise Broken(f"{name} gives scores {score.tolist()}; they must fall, and be -inf where nothing is found")


def _same(found: Found, other: Found, what: str) -> None:
    if found.numbers.tolist() != other.numbers.tolist():
        raise Broken(f"{what} finds {found.numbers.tolist()}, not {other.numbers.tolist()}")
    there = found.numbers >= 0
    if not np.allclose(found.scores[there], other.scores[there], rtol=_NEAR, atol=_NEAR):
        raise Broken(f"{what} has scores {found.scores.tolist()}, not {other.scores.tolist()}")


def _refused(retriever: Retriever, path: Path, what: str) -> None:
    try:
        retriever.load(path.parent, _TEXTS)
    except UserError as error:
        if path.name in str(error):
            return
        raise Broken(f"with {what}, the error does not name the file: {error}") from error
    raise Broken(f"with {what}, it is loaded as if nothing were wrong")
