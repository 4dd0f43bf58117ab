from pathlib import Path

import pytest
from bakeoff.errors import UserError
from bakeoff.parts.corpora.text_files import TextFiles


def splits(corpus: TextFiles) -> tuple[list[str], list[str]]:
    return list(corpus.documents("train")), list(corpus.documents("validation"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    for number in range(200):
        (tmp_path / "deep" / f"{number:03}.txt").write_text(f"text {number}\n")
    (tmp_path / "notes.md").write_text("notes")
    (tmp_path / "code.py").write_text("code")
    return tmp_path


def test_a_folder_gives_all_its_texts_once_in_order(folder: Path) -> None:
    train, validation = splits(TextFiles(path=str(folder)))
    assert sorted(train + validation) == sorted(["notes", *(f"text {number}\n" for number in range(200))])
    assert 5 <= len(validation) <= 40
    numbers = [int(text.split()[1]) for text in train if text != "notes"]
    assert numbers == sorted(numbers)


def test_a_pattern_chooses_files(folder: Path) -> None:
    assert sum(map(len, splits(TextFiles(path=f"{folder}/**/*.py", validation=0)))) == 1
    assert sum(map(len, splits(TextFiles(path=f"{folder}/deep/00*.txt")))) == 10


def test_equal_files_stand_on_one_side(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"text {number % 20}")
    for seed in range(5):
        train, validation = splits(TextFiles(path=str(tmp_path), seed=seed, validation=0.3))
        assert not set(train) & set(validation)
        assert len(train) + len(validation) == 60


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_two_files_are_one_for_each_side(tmp_path: Path, share: float) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    train, validation = splits(TextFiles(path=str(tmp_path), validation=share))
    assert sorted(train + validation) == ["a", "b"]
    assert len(train) == 1


def test_a_single_file_is_cut_at_a_line_end(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(100))
    (tmp_path / "one.txt").write_text(text)
    train, validation = splits(TextFiles(path=str(tmp_path / "one.txt")))
    assert len(train) == len(validation) == 1
    assert train[0] + validation[0] == text
    assert train[0].endswith("\n")
    assert len(validation[0]) == pytest.approx(0.1 * len(text), rel=0.1)


@pytest.mark.parametrize(("text", "first"), [("ab " * 20, "ab " * 18), ("x" * 20, "x" * 18)])
def test_without_a_line_end_the_cut_is_at_a_space_or_anywhere(tmp_path: Path, text: str, first: str) -> None:
    (tmp_path / "one.txt").write_text(text)
    train, validation = splits(TextFiles(path=str(tmp_path / "one.txt")))
    assert train == [first]
    assert train[0] + validation[0] == text


def test_no_validation_if_none_is_asked_for(folder: Path) -> None:
    train, validation = splits(TextFiles(path=str(folder), validation=0))
    assert (len(train), len(validation)) == (201, 0)


def test_line_ends_and_encodings_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("é\r\n".encode("latin-1"))
    assert splits(TextFiles(path=str(tmp_path), encoding="latin-1", validation=0))[0] == ["é\r\n"]
    with pytest.raises(UserError, match=r"a\.txt: what stands at byte 0 is not utf-8"):
        splits(TextFiles(path=str(tmp_path)))
    with pytest.raises(UserError, match="unknown encoding"):
        TextFiles(path=str(tmp_path), encoding="utf-9")


def test_the_fingerprint_changes_with_content_and_arguments(folder: Path) -> None:
    first = TextFiles(path=str(folder)).fingerprint()
    assert TextFiles(path=f"{folder}/").fingerprint() == first
    assert TextFiles(path=str(folder), seed=1).fingerprint() != first
    assert TextFiles(path=str(folder), validation=0.2).fingerprint() != first
    (folder / "notes.md").write_text("nodes")
    changed = TextFiles(path=str(folder)).fingerprint()
    assert changed != first
    (folder / "more.md").write_text("")
    assert TextFiles(path=str(folder)).fingerprint() != changed


def test_the_same_text_dealt_out_over_other_files_has_another_fingerprint(tmp_path: Path) -> None:
    for name, texts in (("a", ["xy", "z"]), ("b", ["x", "yz"])):
        (tmp_path / name).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / name / f"{number}.txt").write_text(text)
    assert TextFiles(path=str(tmp_path / "a")).fingerprint() != TextFiles(path=str(tmp_path / "b")).fingerprint()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"path is '.*nowhere\.txt', and there is no file there"):
        TextFiles(path=str(tmp_path / "nowhere.txt"))
    with pytest.raises(UserError, match=r"no \*\.txt or \*\.md file in it; .* pattern"):
        TextFiles(path=str(tmp_path))
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="what is found there is empty"):
        TextFiles(path=str(tmp_path))
    with pytest.raises(UserError, match=r"validation is 1\.5; .* less than 1"):
        TextFiles(path=str(tmp_path), validation=1.5)
