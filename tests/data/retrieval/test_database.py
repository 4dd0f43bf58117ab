"""Databases on disk: made once, gone on with after a kill, refused where they are not what a recipe asks for."""

import errno
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bakeoff.data import Data
from bakeoff.data.retrieval import Retrieval, ahead
from bakeoff.errors import UserError
from bakeoff.parts.files import read_sealed, write_sealed

fork = multiprocessing.get_context("fork")


def content(folder: Path) -> dict[str, bytes]:
    """All files in a folder, without locks."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"chunk": 0}, "data.retrieval.chunk is 0; it must be at least 1"),
        ({"k": -1}, "data.retrieval.k is -1; it must be at least 1"),
        ({"share": 0.0}, "data.retrieval.share is 0; it must be above 0 and at most 1"),
        ({"share": 1.5}, "data.retrieval.share is 1.5"),
    ],
)
def test_what_no_recipe_can_mean_is_refused(letters: type, arguments: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Retrieval(retriever=letters(), **arguments)


def test_rows_shorter_than_a_chunk_are_refused(retrieving: Callable[..., Data]) -> None:
    with pytest.raises(UserError, match=r"chunk is 17, and data\.length is 16.*at most 16"):
        retrieving(["abc"], chunk=17)


def test_a_database_of_nothing_and_of_too_little_are_refused(retrieving: Callable[..., Data]) -> None:
    with pytest.raises(UserError, match="its 2 documents hold no text"):
        retrieving(["", ""], ["abcd" * 9]).lookup()
    with pytest.raises(UserError, match=r"k is 4, but the database holds 3 chunks.*at most 3"):
        retrieving(["abcdef", "ab"], k=4).lookup()
    assert len(retrieving(["abcdef", "ab"], k=3).lookup()) == 3


def test_it_is_made_once_and_found_again(retrieving: Callable[..., Data], ragged: list[str], tmp_path: Path) -> None:
    retrieving(ragged).find_neighbours()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    retrieving(ragged).find_neighbours()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    folders = {path.name for path in (tmp_path / "cache" / "neighbours").iterdir() if path.is_dir()}
    assert sorted(name.partition("-")[0] for name in folders) == ["train", "validation"]
    for changed in ({"k": 1}, {"isolate_documents": False}, {"length": 8}, {"chunk": 3}, {"share": 0.5}):
        retrieving(ragged, **changed).find_neighbours()
        now = {path.name for path in (tmp_path / "cache" / "neighbours").iterdir() if path.is_dir()}
        assert len(now - folders) == 2, changed
        folders = now


def test_nothing_is_made_before_it_is_asked_for(
    retrieving: Callable[..., Data], ragged: list[str], tmp_path: Path
) -> None:
    data = retrieving(ragged)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"tokenizers", "tokens"}
    assert data.fingerprint == f"{data.store('train').folder.name}-{data.retrieved.fingerprint}"
    data.lookup()
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"tokenizers", "tokens", "indexes"}


def test_fingerprints_tell_what_is_found(
    retrieving: Callable[..., Data], documents: type, ragged: list[str], letters: type
) -> None:
    changes = [{}, {"k": 1}, {"chunk": 2}, {"share": 0.5}, {"retriever": letters(salt="b")}]
    changes.append({"database": documents(["abc"], [])})
    assert len({retrieving(ragged, **changed).fingerprint for changed in changes}) == len(changes)
    assert retrieving(ragged, live=True).fingerprint == retrieving(ragged).fingerprint


def test_another_corpus_may_be_the_database(retrieving: Callable[..., Data], documents: type) -> None:
    other = documents(["dcba", "xyz"], ["abcd"])
    data = retrieving(["abcd" * 4] * 2, database=other, k=1)
    lookup = data.lookup()
    assert [lookup.text(number) for number in range(len(lookup))] == ["dcba", "xyz"]
    batch = next(iter(data.training(tokens_wanted=16, seed=0)))
    assert batch["neighbours"][0, 0, 0, :5].tolist() == [*b"dcba", data.tokenizer.end]
    same = retrieving(["abcd" * 4] * 2, database=documents(["abcd" * 4] * 2, ["abcd" * 4] * 2), k=1)
    chunks = same.retrieved.find("train")
    assert same.lookup().documents(chunks.numbers[:4, 0]).tolist() == [1] * 4  # row 0 is document 0


def killed(work: Callable[[], object], after: Callable[[], bool]) -> None:
    """Run in a process of its own that is killed as soon as `after` holds."""
    process = fork.Process(target=work)
    process.start()
    until = time.monotonic() + 60
    while not after():
        assert process.is_alive(), "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.001)
    process.kill()
    process.join()


def test_killed_it_goes_on_and_ends_in_the_same_bytes(
    retrieving: Callable[..., Data],
    ragged: list[str],
    letters: type,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "AT_ONCE", 8)
    data = retrieving(ragged)
    data.find_neighbours()
    cache = tmp_path / "cache"
    whole = content(cache)
    index, train = data.retrieved.database.folder, next(cache.glob("neighbours/train-*[!k]"))
    for name in ("indexes", "neighbours"):
        shutil.rmtree(cache / name)

    def slowly() -> None:
        progress = letters.load

        def build(self: object, texts: list[str], folder: Path, told: Callable[[int], None]) -> None:
            real(self, texts, folder, lambda done: (told(done), time.sleep(0.003)))

        real, letters.build = letters.build, build
        letters.load = lambda self, folder, texts: Slow(progress(self, folder, texts))
        retrieving(ragged).find_neighbours()

    class Slow:
        def __init__(self, held: object):
            self.held = held

        def neighbours(self, *given: object) -> object:
            time.sleep(0.02)
            return self.held.neighbours(*given)

    partial = index.with_name(index.name + ".partial")
    killed(slowly, lambda: sum(path.stat().st_size for path in partial.rglob("histograms")) > 20 * 2048)
    assert not index.exists()
    assert (partial / "begun.json").exists()
    settled = train.with_name(train.name + ".partial") / "settled.json"
    killed(slowly, lambda: settled.exists() and json.loads(settled.read_bytes())["rows"] >= 8)
    assert index.exists()
    assert not train.exists()
    asked: list[int] = []
    found = ahead.Lookup.found
    monkeypatch.setattr(
        ahead.Lookup, "found", lambda self, store, chunks: (asked.append(store), found(self, store, chunks))[1]
    )
    retrieving(ragged).find_neighbours()
    assert content(cache) == whole
    rows = -(-len(data.store("train").tokens) // 16)
    assert 0 < sum(store.split == "train" for store in asked) <= rows - 8 // 2


def test_processes_that_want_the_same_make_it_once_and_open_it_each(
    retrieving: Callable[..., Data], ragged: list[str], letters: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(what: str) -> None:
        with open(tmp_path / "told", "a") as file:
            file.write(f"{what} {os.getpid()}\n")

    build, load = letters.build, letters.load
    monkeypatch.setattr(letters, "build", lambda self, *given: (told("build"), time.sleep(0.2), build(self, *given)))
    monkeypatch.setattr(letters, "load", lambda self, *given: (told("load"), load(self, *given))[1])
    work = [fork.Process(target=retrieving(ragged).lookup) for _ in range(2)]
    for process in work:
        process.start()
    for process in work:
        process.join(60)
    assert [process.exitcode for process in work] == [0, 0]
    assert [line.split()[0] for line in (tmp_path / "told").read_text().splitlines()] == ["build"]
    lookup = retrieving(ragged).lookup()
    lookup.search(["abc"])
    child = fork.Process(target=lambda: [lookup.search(["abc"]) for _ in range(2)])
    child.start()
    child.join(60)
    lookup.search(["abc"])
    loads = [line for line in (tmp_path / "told").read_text().splitlines() if line.startswith("load")]
    assert loads == [f"load {os.getpid()}", f"load {child.pid}"]


def test_a_folder_of_its_own_is_made_and_opened(
    retrieving: Callable[..., Data], ragged: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "here" / "my.index"
    built = retrieving(ragged).retrieved.database
    assert built.build(folder, progress=False)
    assert not built.build(folder, progress=False)
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "index"}
    one, other = (retrieving(ragged, index=at).lookup() for at in (None, str(folder)))
    assert one.search(["abcd"]).numbers.tolist() == other.search(["abcd"]).numbers.tolist()
    held = read_sealed(folder / "manifest.json")
    assert (held["chunk"], held["share"], held["chunks"], held["documents"]) == (
        4,
        1.0,
        len(one),
        len([t for t in ragged if t]),
    )


def test_an_index_of_something_else_is_refused_with_all_that_differs(
    retrieving: Callable[..., Data], ragged: list[str], letters: type, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    retrieving(ragged).retrieved.database.build(folder, progress=False)

    def refused(*texts: list[str], **changed: object) -> str:
        with pytest.raises(UserError) as caught:
            retrieving(*(texts or [ragged]), index=str(folder), **changed).lookup()
        return str(caught.value)

    told = refused(chunk=2, share=0.5)
    assert "chunk is 4 there and 2 in this recipe; share is 1.0 there and 0.5 in this recipe. Make" in told
    assert f"bakeoff index RECIPE --folder {folder}-2" in told
    salted = letters(salt="other")
    assert f"retriever is {letters().fingerprint()} there and {salted.fingerprint()} in" in refused(retriever=salted)
    assert "corpus is " in (told := refused([*ragged, "more"]))
    assert "chunks is" not in told
    with pytest.raises(UserError, match="holds something else than this index"):
        retrieving(ragged, chunk=2).retrieved.database.build(folder, progress=False)


def test_what_is_no_index_or_damaged_is_refused(
    retrieving: Callable[..., Data], ragged: list[str], tmp_path: Path
) -> None:
    def refused(folder: Path) -> str:
        with pytest.raises(UserError) as caught:
            retrieving(ragged, index=str(folder)).lookup()
        return str(caught.value)

    assert f"{tmp_path / 'none'} is no index: there is no such folder; make it with: bakeoff index RECIPE" in refused(
        tmp_path / "none"
    )
    assert "is no index: it has no manifest.json" in refused(tmp_path)
    folder = tmp_path / "index"
    retrieving(ragged).retrieved.database.build(folder, progress=False)
    path = folder / "index" / "histograms"
    held = path.read_bytes()
    path.write_bytes(held[:-5])
    assert f"histograms was written with {len(held)} bytes and has {len(held) - 5}" in refused(folder)
    path.unlink()
    assert "histograms is not there" in refused(folder)
    (folder / "manifest.json").write_text("{}")
    assert "manifest.json is damaged" in refused(folder)


def test_in_the_cache_what_is_damaged_is_made_anew(retrieving: Callable[..., Data], ragged: list[str]) -> None:
    data = retrieving(ragged)
    data.find_neighbours()
    index = data.retrieved.database.folder
    stored = next(index.parent.parent.glob("neighbours/train-*/numbers"))
    for path in (index / "index" / "histograms", stored):
        held = path.read_bytes()
        path.write_bytes(held[:-5])
        retrieving(ragged).find_neighbours()
        assert path.read_bytes() == held


def test_work_on_something_else_that_was_left_is_thrown_away(
    retrieving: Callable[..., Data], ragged: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    retrieving(ragged, chunk=2).retrieved.database.build(folder, progress=False)
    partial = folder.rename(tmp_path / "index.partial")
    write_sealed(partial / "begun.json", read_sealed(partial / "manifest.json"))
    retrieving(ragged).retrieved.database.build(folder, progress=False)
    assert not partial.exists()
    one, other = (retrieving(ragged, index=at).lookup() for at in (None, str(folder)))
    assert one.search(ragged[:3]).numbers.tolist() == other.search(ragged[:3]).numbers.tolist()


def test_a_full_disk_is_one_message_and_leaves_nothing_that_looks_whole(
    retrieving: Callable[..., Data], ragged: list[str], letters: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(letters, "build", full)
        with pytest.raises(UserError, match=r"cannot write .*indexes/\w+: No space left on device; .*make room"):
            retrieving(ragged).lookup()
    assert not [path for path in (tmp_path / "cache" / "indexes").iterdir() if path.suffix not in (".lock", ".partial")]
    with monkeypatch.context() as patch:
        patch.setattr(ahead._Writer, "append", full)
        with pytest.raises(UserError, match=r"cannot write .*neighbours/train-\w+: No space left on device"):
            retrieving(ragged).find_neighbours()
    retrieving(ragged).find_neighbours()


def test_a_lookup_gives_tokens_texts_and_documents(retrieving: Callable[..., Data]) -> None:
    data = retrieving(["abcdefgh", "dcba", "zz"], k=2)
    lookup, end, pad = data.lookup(), data.tokenizer.end, data.tokenizer.padding
    found = lookup.search(["bcda"], 3, np.array([[1, 2]]))
    assert found.numbers.tolist() == [[0, 2, 3]]  # the same letters, the same, and 6 others
    assert lookup.search([]).numbers.shape == (0, 2)
    tokens, real = lookup.neighbours([list(b"abcd"), [*b"zz", end]], np.array([[0, 2], [3, 4]]))
    assert tokens[0].tolist() == [[*b"dcba", end, pad, pad, pad], [*b"zz", end, *[pad] * 5]]
    assert real.sum(2).tolist() == [[5, 3], [8, 5]]
    assert tokens.shape == (2, 2, 8)
    assert [lookup.text(number) for number in range(4)] == ["abcd", "efgh", "dcba", "zz"]
    assert lookup.documents(np.array([[0, 1], [2, 3]])).tolist() == [[0, 0], [1, 2]]
