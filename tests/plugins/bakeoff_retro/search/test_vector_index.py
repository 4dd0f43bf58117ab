import numpy as np
import pytest
from bakeoff.errors import MissingExtra, UserError
from bakeoff_retro.search import libraries, vector_index
from bakeoff_retro.search.vector_kinds import flat_index, hnsw_index, ivf_pq_index, load_index

KINDS = {"flat": flat_index, "ivf_pq": ivf_pq_index, "hnsw": hnsw_index}


@pytest.fixture(scope="module")
def indexes(database):
    return {name: build(database) for name, build in KINDS.items()}


@pytest.mark.parametrize("k", [1, 2, 40])
@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_exact_search_is_a_full_sort(database, queries, brute, k, metric, monkeypatch):
    monkeypatch.setattr(vector_index, "BLOCK_BYTES", 64 * 4 * 300)
    numbers, scores = brute(database, queries, k, euclidean=metric == "euclidean")
    found = flat_index(database, metric=metric).neighbours(queries, k)
    assert np.array_equal(found.numbers, numbers)
    assert np.abs(found.scores - scores).max() < 1e-5


def test_exclusion_is_a_full_sort_without_what_is_excluded(database, queries, brute, monkeypatch):
    monkeypatch.setattr(vector_index, "BLOCK_BYTES", 64 * 4 * 300)
    first = np.random.default_rng(3).integers(-100, 2000, len(queries))
    exclude = np.stack([first, first + np.random.default_rng(4).integers(0, 1500, len(queries))], 1)
    numbers, scores = brute(database, queries, 3, exclude)
    found = flat_index(database).neighbours(queries, 3, exclude)
    assert np.array_equal(found.numbers, numbers)
    assert np.abs(found.scores - scores).max() < 1e-5


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("width", [2, 90, 1500, 1998])
def test_where_the_nearest_are_all_excluded_others_are_found(database, queries, brute, indexes, name, width):
    """A document that owns all that is nearest to the first query, so that more have to be asked for, up to all."""
    numbers, scores = brute(database, queries[:1], 2, np.array([[0, width]]))
    found = indexes[name].neighbours(queries[:1], 2, np.array([[0, width]]))
    assert (found.numbers >= width).all()
    assert np.abs(found.scores - scores).max() < 0.1
    if name == "flat" or width == 1998:
        assert np.array_equal(found.numbers, numbers)


@pytest.mark.parametrize(("name", "floor"), [("flat", 1.0), ("hnsw", 0.98), ("ivf_pq", 0.95)])
def test_recall_of_two_neighbours(queries, indexes, name, floor):
    exact = indexes[name].exact(queries, 2)
    found = indexes[name].neighbours(queries, 2)
    recall = np.mean([len(set(a) & set(b)) / 2 for a, b in zip(found.numbers, exact.numbers, strict=True)])
    assert recall >= floor
    same = found.numbers == exact.numbers
    assert np.array_equal(found.scores[same], exact.scores[same])


@pytest.mark.parametrize("name", ["ivf_pq", "hnsw"])
@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_saved_is_what_is_loaded(database, queries, name, metric, tmp_path):
    index = KINDS[name](database[:500], metric=metric)
    index.save(tmp_path / "index.faiss")
    assert [path.name for path in tmp_path.iterdir()] == ["index.faiss"]
    again = load_index(tmp_path / "index.faiss", database[:500], metric=metric)
    for one, other in zip(index.neighbours(queries, 3), again.neighbours(queries, 3), strict=True):
        assert np.array_equal(one, other)
    with pytest.raises(UserError, match="holds 500 vectors of 64 numbers"):
        load_index(tmp_path / "index.faiss", database[:499], metric=metric)
    content = (tmp_path / "index.faiss").read_bytes()
    (tmp_path / "index.faiss").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"index.faiss is damaged or cut short"):
        load_index(tmp_path / "index.faiss", database[:500], metric=metric)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("count", [1, 2, 5, 39])
def test_a_small_database_is_indexed_whole(database, queries, brute, name, count):
    found = KINDS[name](database[:count]).neighbours(queries[:5], 6)
    assert np.array_equal(found.numbers[:, :count], brute(database[:count], queries[:5], 6)[0])
    assert (found.numbers[:, count:] == -1).all()
    assert np.isneginf(found.scores[:, count:]).all()


def test_of_equal_vectors_the_lower_number_comes_first(database):
    thrice = np.concatenate([database[:50]] * 3)
    assert np.array_equal(
        flat_index(thrice).neighbours(database[:50], 3).numbers, np.arange(50)[:, None] + [0, 50, 100]
    )


def test_vectors_of_half_the_size_are_taken(database, queries, brute):
    half = database.astype(np.float16)
    assert np.array_equal(hnsw_index(half).neighbours(queries, 1).numbers, brute(half, queries, 1)[0])


def test_the_same_vectors_give_the_same_graph(database, queries):
    one, other = (hnsw_index(database[:1000]).neighbours(queries, 4) for _ in range(2))
    assert np.array_equal(one.numbers, other.numbers)


def test_sizes_that_do_not_fit_are_named(database, queries):
    with pytest.raises(UserError, match="lists is 50, and the database has 40 chunks: take 40 lists or fewer"):
        ivf_pq_index(database[:40], lists=50)
    with pytest.raises(ValueError, match=r"code_bytes is 48 and must divide the width 64 of the vectors.* 32$"):
        ivf_pq_index(database, code_bytes=48)
    with pytest.raises(ValueError, match="k is 0"):
        flat_index(database).neighbours(queries, 0)
    with pytest.raises(ValueError, match=r"this index takes \(q, 64\)"):
        flat_index(database).neighbours(queries[:, :32], 1)
    with pytest.raises(ValueError, match=r"100 queries take \(100, 2\)"):
        flat_index(database).neighbours(queries, 1, np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match="metric is 'cosine'"):
        flat_index(database, metric="cosine")


def test_without_faiss_the_line_that_adds_it_is_told(database, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(libraries, "import_module", absent)
    for build in (ivf_pq_index, hnsw_index):
        with pytest.raises(MissingExtra, match=r"pip install 'bakeoff\[retrieval\]'"):
            build(database)
    flat_index(database)
