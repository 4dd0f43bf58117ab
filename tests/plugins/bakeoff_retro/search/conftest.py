import numpy as np
import pytest


def clustered(count, width, *, centres, seed, spread=0.5):
    """Unit vectors around as many centres; those of another seed around the same."""
    middle = np.random.default_rng(0).standard_normal((centres, width))
    noise = np.random.default_rng(seed)
    vectors = middle[noise.integers(centres, size=count)] + spread * noise.standard_normal((count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="package")
def queries():
    return clustered(100, 64, centres=50, seed=2)


@pytest.fixture(scope="package")
def database(queries):
    """The nearest to the first query come first."""
    vectors = clustered(2000, 64, centres=50, seed=1)
    return vectors[np.argsort(-(vectors @ queries[0]))]


@pytest.fixture
def brute():
    """Numbers and scores by a full sort of all scores, in float64."""

    def search(vectors, asked, k, exclude=None, euclidean=False):
        vectors, asked = vectors.astype(np.float64), asked.astype(np.float64)
        scores = -np.square(asked[:, None] - vectors).sum(-1) if euclidean else asked @ vectors.T
        for row, (first, last) in enumerate(exclude if exclude is not None else []):
            scores[row, max(first, 0) : last] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(scores, order, 1)
        return np.where(np.isneginf(best), -1, order), best

    return search
