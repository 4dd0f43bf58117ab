"""The cache: what is made once, found again, gone on with after a kill, and never half there."""

import errno
import multiprocessing
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bakeoff.data import Data, TokenStore, progress, writing
from bakeoff.data.locking import locked
from bakeoff.data.preparing import cache_folder
from bakeoff.data.store import id_type, is_whole
from bakeoff.errors import UserError
from bakeoff.interfaces import Corpus, Tokenizer
from bakeoff.parts.tokenizers.bpe import BPETokenizer
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.parts.tokenizers.char import CharTokenizer
from bakeoff.parts.tokenizers.word import WordTokenizer

fork = multiprocessing.get_context("fork")


def data_of(corpus: Corpus, cache: Path, tokenizer: Tokenizer | None = None, **arguments: object) -> Data:
    return Data(
        corpus=corpus, tokenizer=tokenizer or ByteTokenizer(), length=8, batch_tokens=8, cache=str(cache), **arguments
    )


def content(cache: Path) -> dict[str, bytes]:
    """All files of a cache, without locks."""
    files = [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(cache).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle every two thousand bytes, so that a short text takes many steps."""
    monkeypatch.setattr(writing, "BATCH", 400)
    monkeypatch.setattr(writing, "SETTLE", 2000)


def test_what_was_prepared_is_found_again(documents: type, texts: list[str], tmp_path: Path) -> None:
    first = data_of(documents(texts, texts[:9]), tmp_path, BPETokenizer(vocab_size=300)).prepare()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    shutil.rmtree(tmp_path / "tokens" / "nothing", ignore_errors=True)
    second = data_of(documents(texts, texts[:9]), tmp_path, BPETokenizer(vocab_size=300)).prepare()
    assert second.fingerprint == first.fingerprint
    assert second.vocab_size == first.vocab_size == 300
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_fingerprints_change_with_the_text_and_with_the_tokenizer(documents: type, tmp_path: Path) -> None:
    text = "the cat sat on the mat " * 20
    made = [
        data_of(documents([text], ["x"]), tmp_path),
        data_of(documents([text + "!"], ["x"]), tmp_path),
        data_of(documents([text], ["y"]), tmp_path),
        data_of(documents([text], ["x"]), tmp_path, CharTokenizer()),
        data_of(documents([text], ["x"]), tmp_path, WordTokenizer(vocab_size=262)),
        data_of(documents([text], ["x"]), tmp_path, WordTokenizer(vocab_size=263)),
    ]
    assert len({data.prepare().fingerprint for data in made}) == len(made)


def test_the_tokenizer_learns_from_the_train_split_only(documents: type, tmp_path: Path) -> None:
    data = data_of(documents(["äää"], ["öööö" * 100]), tmp_path, CharTokenizer()).prepare()
    assert data.tokenizer.encode("äö") == [256, *"ö".encode()]


def test_the_tokenizer_learns_from_whole_documents_up_to_the_limit(documents: type, tmp_path: Path) -> None:
    corpus = documents(["ä" * 4, "ö" * 4, "ü"], ["x"])  # 8, 8 and 2 bytes
    learnt = [
        data_of(corpus, tmp_path, CharTokenizer(), tokenizer_bytes=limit).prepare().tokenizer.text_size - 256
        for limit in (1, 8, 9, 16, 17)
    ]
    assert learnt == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("size", "kind"), [(2, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4"), (2**32, "u4")]
)
def test_ids_take_the_smallest_type_that_holds_them(size: int, kind: str) -> None:
    assert id_type(size).str[1:] == kind


def test_the_store_holds_what_the_tokenizer_gives(documents: type, texts: list[str], tmp_path: Path) -> None:
    data = data_of(documents(texts, texts[:5]), tmp_path, WordTokenizer(vocab_size=400)).prepare()
    store = data.store("train")
    assert store.tokens.dtype == np.uint16
    assert [store.document(n).tolist() for n in range(len(texts))] == data.tokenizer.encode_batch(texts)


def test_a_tokenizer_that_gives_reserved_ids_for_text_is_refused(documents: type, tmp_path: Path) -> None:
    class Wrong(ByteTokenizer):
        def encode_arrays(self, texts: list[str], threads: int = 1) -> list[np.ndarray]:
            return [np.array([self.end]) for _ in texts]

    with pytest.raises(ValueError, match="Wrong gave a reserved id for text"):
        data_of(documents(["a"], ["b"]), tmp_path, Wrong()).prepare()


def prepare(corpus: Corpus, cache: Path, pause: float) -> None:
    class Slow(ByteTokenizer):
        def encode_arrays(self, texts: list[str], threads: int = 1) -> list[np.ndarray]:
            time.sleep(pause)
            return super().encode_arrays(texts, threads)

    Slow.__module__, Slow.__qualname__ = ByteTokenizer.__module__, ByteTokenizer.__qualname__
    data_of(corpus, cache, Slow()).prepare()


@pytest.mark.usefixtures("small_steps")
def test_killed_again_and_again_it_ends_in_the_same_bytes(documents: type, texts: list[str], tmp_path: Path) -> None:
    corpus, rng = documents(texts, texts[:99]), random.Random(0)
    prepare(corpus, tmp_path / "whole", pause=0)
    for _ in range(6):
        worker = fork.Process(target=prepare, args=(corpus, tmp_path / "killed", 0.002))
        worker.start()
        worker.join(rng.uniform(0.02, 0.2))
        worker.kill()
        worker.join()
        for path in (tmp_path / "killed" / "tokens").glob("*"):
            assert path.suffix or content(path) == content(tmp_path / "whole" / "tokens" / path.name)
    prepare(corpus, tmp_path / "killed", pause=0)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


class Interrupted(Exception):
    pass


def interrupted(corpus: Corpus, after: int) -> Corpus:
    """The corpus, whose documents break off after some of the first split."""

    class Breaking(type(corpus)):
        def documents(self, split: str) -> Iterator[str]:
            for number, text in enumerate(super().documents(split)):
                if number == after:
                    raise Interrupted
                yield text

    return Breaking(corpus.splits["train"], corpus.splits["validation"])


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("damage", ["torn line", "lost bytes", "extra bytes", "none"])
def test_it_goes_on_from_what_is_settled(documents: type, texts: list[str], tmp_path: Path, damage: str) -> None:
    corpus = documents(texts, texts[:9])
    prepare(corpus, tmp_path / "whole", pause=0)
    with pytest.raises(Interrupted):
        prepare(interrupted(corpus, 200), tmp_path / "broken", pause=0)
    (partial,) = (tmp_path / "broken" / "tokens").glob("*.partial")
    journal, tokens = partial / "journal", partial / "train.tokens"
    assert journal.read_bytes().count(b"\n") > 5
    if damage == "torn line":
        journal.write_bytes(journal.read_bytes()[:-7])
    elif damage == "lost bytes":
        tokens.write_bytes(tokens.read_bytes()[:1000])
    elif damage == "extra bytes":
        tokens.write_bytes(tokens.read_bytes() + b"abc")
    prepare(corpus, tmp_path / "broken", pause=0)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def test_a_store_that_was_damaged_is_made_anew(documents: type, texts: list[str], tmp_path: Path) -> None:
    corpus = documents(texts, texts)
    folder = tmp_path / "tokens" / data_of(corpus, tmp_path).prepare().fingerprint
    before = content(tmp_path)
    with open(folder / "train.tokens", "r+b") as file:
        file.truncate(10)
    assert not is_whole(folder)
    data_of(corpus, tmp_path).prepare()
    assert content(tmp_path) == before


class FullDisk:
    """A file on a disk that has room for so many bytes more."""

    def __init__(self, file: object, room: list[int]):
        self.file, self.room = file, room

    def write(self, data: memoryview) -> int:
        self.room[0] -= memoryview(data).nbytes
        if self.room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


@pytest.mark.usefixtures("small_steps")
def test_a_full_disk_is_told_with_folder_and_bytes_and_leaves_nothing_that_looks_whole(
    documents: type, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = documents(texts, texts[:9])
    whole = data_of(corpus, tmp_path / "whole").prepare()
    opened = writing.opened
    with monkeypatch.context() as patch:
        room = [20_000]
        patch.setattr(writing, "opened", lambda path, size: FullDisk(opened(path, size), room))
        with pytest.raises(UserError) as caught:
            data_of(corpus, tmp_path / "full").prepare()
    message = str(caught.value)
    assert str(tmp_path / "full" / "tokens") in message
    assert "No space left on device" in message
    assert f"up to {corpus.size() * 2:,} bytes" in message
    assert "data.cache" in message
    with pytest.raises(FileNotFoundError):
        TokenStore(tmp_path / "full" / "tokens" / whole.fingerprint, "train")
    data_of(corpus, tmp_path / "full").prepare()
    assert content(tmp_path / "full") == content(tmp_path / "whole")


def test_a_cache_that_cannot_be_written_is_told(documents: type, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*file/tokenizers.*BAKEOFF_CACHE"):
        data_of(documents(["a"], ["b"]), tmp_path / "file").prepare()


def test_a_corpus_that_cannot_be_read_is_not_a_full_disk(documents: type, tmp_path: Path) -> None:
    class Lost(documents):
        def documents(self, split: str) -> Iterator[str]:
            yield "a"
            raise ConnectionError("gone")

    with pytest.raises(UserError, match="reading the train split of the corpus failed: ConnectionError: gone"):
        data_of(Lost(["a"], ["b"]), tmp_path).prepare()


def test_a_second_process_waits_and_says_so(documents: type, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus = documents(["some text"], ["more"])
    first = data_of(corpus, tmp_path).prepare()
    folder = tmp_path / "tokens" / first.fingerprint
    shutil.rmtree(folder)
    with locked(folder.with_suffix(".lock"), "test"):
        second = fork.Process(target=prepare, args=(corpus, tmp_path, 0))
        second.start()
        second.join(0.3)
        assert second.exitcode is None
        assert not folder.exists()
    second.join(20)
    assert second.exitcode == 0
    assert is_whole(folder)
    assert "another process is preparing tokens" in capfd.readouterr().err


def test_two_processes_prepare_once(documents: type, texts: list[str], tmp_path: Path) -> None:
    corpus = documents(texts, texts)
    seen = fork.Value("i", 0)

    class Counting(documents):
        def documents(self, split: str) -> Iterator[str]:
            with seen:
                seen.value += 1
            return super().documents(split)

    workers = [fork.Process(target=prepare, args=(Counting(texts, texts), tmp_path, 0.02)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert seen.value == 2  # each split once
    assert is_whole(tmp_path / "tokens" / data_of(corpus, tmp_path).prepare().fingerprint)


def test_the_cache_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BAKEOFF_CACHE", raising=False)
    assert cache_folder(None) == tmp_path / ".cache" / "bakeoff"
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "chosen"))
    assert cache_folder(None) == tmp_path / "chosen"
    assert cache_folder("~/given") == tmp_path / "given"


def test_long_work_shows_a_bar_and_short_work_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.Bar("tokenising", 100, show=True) as bar:
        bar.advance(50)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    with progress.Bar("tokenising", 100, show=False) as bar:
        bar.advance(50)
    assert capsys.readouterr().err == ""
    with progress.Bar("tokenising", 100, show=True) as bar:
        bar.advance(50)
    assert "tokenising" in capsys.readouterr().err


def test_where_no_terminal_shows_a_bar_lines_say_how_much_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 1.0, 10.0, 20.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    with progress.Bar("searching", 4000, show=True, unit="rows") as bar:
        for _ in range(4):
            bar.advance(500)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["searching: 1,000 of 4,000 rows, 0:30 left", "searching: 2,000 of 4,000 rows, 0:40 left"]
