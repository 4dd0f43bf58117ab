"""Searches among 10^5 and 10^6 vectors: building, size, latency and recall; and how fast texts are indexed.

    OMP_NUM_THREADS=2 python benchmarks/retrieval_search.py

Vectors are made up: unit vectors of 384 numbers around one centre for each 200, that differ from it in 24 directions,
and a little in all. Queries stand around the same centres. Recall is the share of the two nearest, by comparison with
every vector, that a search finds. All is wall time.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from bakeoff.interfaces import Embedder
from bakeoff.registry import find
from bakeoff_retro import HNSW, SentenceEncoder, Static
from bakeoff_retro.search.vector_index import VectorIndex
from bakeoff_retro.search.vector_kinds import flat_index, hnsw_index, ivf_pq_index, load_index

KINDS = {"flat": flat_index, "ivf_pq": ivf_pq_index, "hnsw": hnsw_index}
WIDTH, DIRECTIONS, CLUSTER, K, BATCH, ROWS = 384, 24, 200, 2, 256, 50_000
#: Characters of a text: about 64 tokens of a vocabulary of some thousands.
CHARACTERS = 240


class Timed(Embedder):
    """Another embedder, and the seconds that it took."""

    def __init__(self, inner: Embedder):
        self.inner, self.seconds = inner, 0.0

    @property
    def width(self) -> int:
        return self.inner.width

    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    def embed(self, texts: Items[str]) -> np.ndarray:
        start = time.perf_counter()
        vectors = self.inner.embed(texts)
        self.seconds += time.perf_counter() - start
        return vectors


def made_up(count: int, clusters: int, seed: int) -> Iterator[np.ndarray]:
    """`count` unit vectors, some rows at a time; those of another seed have the same centres."""
    of_all = np.random.default_rng(0)
    centres = of_all.standard_normal((clusters, WIDTH), dtype=np.float32)
    directions = of_all.standard_normal((DIRECTIONS, WIDTH), dtype=np.float32) / np.float32(DIRECTIONS**0.5)
    random = np.random.default_rng(seed)
    for start in range(0, count, ROWS):
        rows = min(ROWS, count - start)
        inside = random.standard_normal((rows, DIRECTIONS), dtype=np.float32) @ directions
        vectors = centres[random.integers(clusters, size=rows)] + 0.7 * inside
        vectors += 0.1 * random.standard_normal((rows, WIDTH), dtype=np.float32)
        yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def written(path: Path, count: int) -> np.ndarray:
    """A memory map of made-up vectors."""
    with open(path, "wb") as file:
        for vectors in made_up(count, max(1, count // CLUSTER), seed=1):
            file.write(vectors.tobytes())
    return np.memmap(path, np.float32, "c", shape=(count, WIDTH))


def seconds(call: Callable[[], object], rounds: int) -> float:
    """Median of some rounds, after one that is not counted."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def of_kind(name: str, vectors: np.ndarray, queries: np.ndarray, nearest: np.ndarray, folder: Path) -> str:
    """A row of the first table."""
    start = time.perf_counter()
    index: VectorIndex = KINDS[name](vectors)
    size = 0
    if index.candidates is not None:
        index.save(folder / "index.faiss")
        size = (folder / "index.faiss").stat().st_size
        index = load_index(folder / "index.faiss", vectors)
    built = time.perf_counter() - start
    singles = itertools.cycle(queries[:, None])
    single = seconds(lambda: index.neighbours(next(singles), K), rounds=20)
    batch = seconds(lambda: index.neighbours(queries, K), rounds=3) / len(queries)
    found = index.neighbours(queries, K).numbers
    recall = np.mean([len(set(one) & set(other)) / K for one, other in zip(found, nearest, strict=True)])
    return f"{name} | {built:.1f} | {size / 2**20:.0f} | {1e3 * single:.2f} | {1e3 * batch:.3f} | {recall:.3f}"


def search_table(counts: list[int], kinds: list[str], folder: Path) -> None:
    """Each kind of index at each size."""
    head = f"k = {K}, one query, ms | in a batch of {BATCH}, ms a query | recall@{K}"
    print(f"| vectors | retriever | build, s | MiB beside the vectors | {head} |\n|---:|---|---:|---:|---:|---:|---:|")
    for count in counts:
        vectors = written(folder / "vectors.f32", count)
        queries = next(made_up(BATCH, max(1, count // CLUSTER), seed=2))
        nearest = flat_index(vectors).exact(queries, K).numbers
        for name in kinds:
            print(f"| {count:,} | {of_kind(name, vectors, queries, nearest, folder)} |", flush=True)


def indexing_table(texts: dict[str, int], folder: Path) -> None:
    """Texts a second from text to index, for each embedder."""
    documents = find("python_source")().documents("train")
    pieces = (text[at : at + CHARACTERS] for text in documents for at in range(0, len(text), CHARACTERS))
    chunks = list(itertools.islice((piece for piece in pieces if piece.strip()), max(texts.values())))
    print("\n| embedder | chunks | chunks/s, indexed by hnsw | embedder's share |\n|---|---:|---:|---:|")
    for name, embedder in (("static", Static()), ("sentence_encoder", SentenceEncoder())):
        some = chunks[: texts[name]]
        timed = Timed(embedder)
        timed.embed(some[:2])
        timed.seconds = 0.0
        (folder / name).mkdir()
        start = time.perf_counter()
        HNSW(embedder=timed).build(some, folder / name, lambda more: None)
        total = time.perf_counter() - start
        print(f"| {name} | {len(some):,} | {len(some) / total:,.0f} | {timed.seconds / total:.0%} |", flush=True)


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", nargs="*", type=int, default=[100_000, 1_000_000], help="vectors to search among")
    parser.add_argument("--retrievers", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--static", type=int, default=20_000, help="texts that static indexes")
    parser.add_argument("--encoder", type=int, default=1_000, help="texts that sentence_encoder indexes")
    parser.add_argument("--folder", type=Path, help="where files are made; 10^6 vectors take some 4 GB")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads\n")
    with TemporaryDirectory(dir=arguments.folder) as place:
        if arguments.chunks:
            search_table(arguments.chunks, arguments.retrievers, Path(place))
        if arguments.static and arguments.encoder:
            indexing_table({"static": arguments.static, "sentence_encoder": arguments.encoder}, Path(place))


if __name__ == "__main__":
    main()
