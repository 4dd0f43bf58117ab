import os
import signal

import numpy as np
import pytest
from bakeoff.errors import MissingExtra, UserError
from bakeoff_retro import HNSW, IVFPQ, Flat, Static
from bakeoff_retro.search import libraries

WORDS = ["river", "mill", "crown", "storm", "bread"]
TEXTS = [f"line {i} tells of {WORDS[i % 5]} number {i * i}" for i in range(1300)]


def build(retriever, folder, texts=TEXTS):
    told = []
    retriever.build(texts, folder, told.append)
    return told


@pytest.mark.parametrize("retriever", [Flat, IVFPQ, HNSW])
def test_vectors_on_disk_are_the_embedder_s(tmp_path, retriever):
    build(retriever(embedder=Static()), tmp_path)
    written = np.fromfile(tmp_path / "vectors.f32", "<f4").reshape(-1, 256)
    assert np.array_equal(written, Static().embed(TEXTS))
    names = {"search.json", "vectors.f32"} | ({"index.faiss"} if retriever.indexed else set())
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("kept", [0, 7, 512 * 1024 + 3, 2 * 512 * 1024, 1300 * 1024 - 1])
def test_whole_batches_that_a_kill_has_left_are_kept_and_a_torn_one_is_not(tmp_path, kept):
    build(Flat(embedder=Static()), tmp_path)
    content = (tmp_path / "vectors.f32").read_bytes()
    (tmp_path / "vectors.f32").write_bytes(content[:kept])
    told = build(Flat(embedder=Static()), tmp_path)
    there = kept // 1024 // 512 * 512
    assert told == [n for n in (there, *[min(512, 1300 - at) for at in range(there, 1300, 512)]) if n]
    assert (tmp_path / "vectors.f32").read_bytes() == content


def killed_by_the_system(folder):
    """How a process ended that was killed when its first batch was written."""
    child = os.fork()
    if not child:
        try:
            HNSW(embedder=Static()).build(TEXTS, folder, lambda more: os.kill(os.getpid(), signal.SIGKILL))
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_after_sigkill_it_goes_on_to_the_same_answers(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert killed_by_the_system(other) == -signal.SIGKILL
    with pytest.raises(UserError, match="begun and not finished"):
        HNSW(embedder=Static()).load(other, TEXTS)
    build(HNSW(embedder=Static()), one)
    assert build(HNSW(embedder=Static()), other)[0] == 512
    found = [HNSW(embedder=Static()).load(folder, TEXTS).neighbours(TEXTS[:50], 4) for folder in (one, other)]
    assert np.array_equal(found[0].numbers, found[1].numbers)


def test_what_was_begun_with_another_embedder_is_begun_anew(tmp_path):
    build(Flat(embedder=Static(width=100)), tmp_path)
    with pytest.raises(UserError, match="was built by another embedder: build it again"):
        Flat(embedder=Static()).load(tmp_path, TEXTS)
    assert build(Flat(embedder=Static()), tmp_path) == [512, 512, 276]
    assert Flat(embedder=Static()).load(tmp_path, TEXTS).neighbours(TEXTS[:1], 1).numbers.tolist() == [[0]]


def test_a_mismatch_says_what_differs(tmp_path):
    build(HNSW(embedder=Static()), tmp_path, TEXTS[:60])
    with pytest.raises(UserError, match="another retriever: build"):
        HNSW(embedder=Static(), m=8).load(tmp_path, TEXTS[:60])
    with pytest.raises(UserError, match="another retriever and another embedder"):
        HNSW(embedder=Static(width=64), m=8).load(tmp_path, TEXTS[:60])
    with pytest.raises(UserError, match="is an index of 60 chunks; the database has 59"):
        HNSW(embedder=Static()).load(tmp_path, TEXTS[:59])


@pytest.mark.parametrize("name", ["vectors.f32", "index.faiss"])
def test_a_file_cut_short_is_named_with_both_sizes(tmp_path, name):
    build(HNSW(embedder=Static()), tmp_path, TEXTS[:60])
    size = (tmp_path / name).stat().st_size
    os.truncate(tmp_path / name, size - 5)
    with pytest.raises(UserError, match=rf"{name} is damaged: it has {size - 5} bytes, and had {size} when"):
        HNSW(embedder=Static()).load(tmp_path, TEXTS[:60])
    build(HNSW(embedder=Static()), tmp_path, TEXTS[:60])
    HNSW(embedder=Static()).load(tmp_path, TEXTS[:60])


def test_an_empty_database_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(UserError, match="holds no chunk"):
        build(Flat(embedder=Static()), tmp_path, [])
    assert list(tmp_path.iterdir()) == []


def test_no_queries_find_nothing(tmp_path):
    build(HNSW(embedder=Static()), tmp_path, TEXTS[:60])
    assert HNSW(embedder=Static()).load(tmp_path, TEXTS[:60]).neighbours([], 2).numbers.shape == (0, 2)


@pytest.mark.parametrize(
    ("retriever", "arguments", "message"),
    [
        (IVFPQ, {"lists": 4, "probes": 5}, "probes is 5, and there are 4 lists"),
        (IVFPQ, {"lists": 0}, "lists is 0"),
        (IVFPQ, {"code_bytes": 50}, "code_bytes is 50 and must divide the width 256 .* 64$"),
        (HNSW, {"m": 1}, "m is 1"),
        (HNSW, {"m": 32, "ef_construction": 20}, "ef_construction is 20, fewer than the m = 32 links"),
        (HNSW, {"ef_search": 0}, "ef_search is 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_at_once(retriever, arguments, message):
    with pytest.raises(ValueError, match=message):
        retriever(embedder=Static(), **arguments)


@pytest.mark.parametrize(("retriever", "name"), [(IVFPQ, "ivf_pq"), (HNSW, "hnsw")])
def test_without_faiss_the_line_that_adds_it_is_told_at_once(monkeypatch, retriever, name):
    monkeypatch.setattr(libraries, "find_spec", lambda package: None)
    with pytest.raises(MissingExtra, match=rf"retriever '{name}' .*pip install 'bakeoff\[retrieval\]'"):
        retriever(embedder=Static())
    Flat(embedder=Static())


def test_fingerprints_tell_settings_and_embedder():
    static = Static()
    kinds = [Flat(embedder=static), HNSW(embedder=static), HNSW(embedder=static, ef_search=65), IVFPQ(embedder=static)]
    kinds += [IVFPQ(embedder=static, probes=3), Flat(embedder=Static(width=9))]
    assert len({kind.fingerprint() for kind in kinds}) == len(kinds)
