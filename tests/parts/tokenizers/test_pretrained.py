from pathlib import Path

import pytest
from bakeoff.errors import UserError
from bakeoff.parts.tokenizers.pretrained import PretrainedTokenizer
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

TEXTS = ["the cat sat on the mat, the café naïve café\n", "The cat's hat.\n\n  indented 123\n"]
END = "<|endoftext|>"


def byte_level(folder: Path, **changes: object) -> Path:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    )
    library.post_processor = processors.TemplateProcessing(single=f"{END} $A {END}", special_tokens=[(END, 0)])
    for name, value in changes.items():
        setattr(library, name, value)
    library.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_a_byte_level_file_is_lossless_and_gives_the_librarys_ids(tmp_path: Path, odd_texts: list[str]) -> None:
    path = byte_level(tmp_path)
    made, library = PretrainedTokenizer(path=str(path)), Library.from_file(str(path))
    assert made.lossless
    assert made.vocab_size == library.get_vocab_size() + 3
    for text in [*TEXTS, *odd_texts]:
        ids = made.encode(text)
        assert made.decode(ids) == text
        assert made.bytes_per_token()[ids].sum() == len(text.encode())
        if END not in text:
            assert ids == library.encode(text, add_special_tokens=False).ids


def test_its_special_tokens_are_not_found_in_text_nor_added_to_it(tmp_path: Path) -> None:
    made = PretrainedTokenizer(path=str(byte_level(tmp_path)))
    assert 0 not in made.encode(f"a{END}b")
    assert made.decode(made.encode(f"a{END}b")) == f"a{END}b"
    assert made.token_bytes(0) == b""
    assert made.decode([0, *made.encode("x"), made.end]) == "x"


def test_its_own_special_token_can_end_documents_and_then_no_ids_are_added(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    made = PretrainedTokenizer(path=str(path), end=END)
    assert made.vocab_size == made.text_size == Library.from_file(str(path)).get_vocab_size()
    assert (made.end, made.padding, made.mask) == (0, 0, 0)
    assert 0 not in made.encode(f"a{END}b")
    (tmp_path / "saved").mkdir()
    made.save(tmp_path / "saved")
    assert PretrainedTokenizer.load(tmp_path / "saved").end == 0
    with pytest.raises(UserError, match=r"'<eos>', which is no special token of the file; it has '<\|endoftext\|>'"):
        PretrainedTokenizer(path=str(path), end="<eos>")


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": normalizers.NFC()},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"pre_tokenizer": pre_tokenizers.Whitespace()},
        {
            "pre_tokenizer": pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(" "), "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        },
    ],
    ids=["normalised", "space added", "words", "space dropped"],
)
def test_a_file_that_changes_text_is_not_lossless(tmp_path: Path, changes: dict[str, object]) -> None:
    assert not PretrainedTokenizer(path=str(byte_level(tmp_path, **changes))).lossless


def test_a_split_that_keeps_all_is_lossless(tmp_path: Path, odd_texts: list[str]) -> None:
    split = pre_tokenizers.Split(Regex(r"\d{1,3}|\s+|\w+"), "isolated")
    steps = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made = PretrainedTokenizer(path=str(byte_level(tmp_path, pre_tokenizer=steps)))
    assert made.lossless
    assert all(made.decode(made.encode(text)) == text for text in odd_texts)


def test_an_added_token_that_is_no_special_one_stands_for_its_text(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    library = Library.from_file(str(path))
    library.add_tokens([AddedToken("zebra", normalized=False)])
    library.save(str(path))
    made = PretrainedTokenizer(path=str(path))
    assert made.lossless
    assert len(made.encode("zebra")) == 1
    assert made.decode(made.encode("a zebra!")) == "a zebra!"


def test_word_pieces_are_not_lossless_but_decode(tmp_path: Path) -> None:
    library = Library(models.WordPiece(vocab={"[UNK]": 0, "the": 1, "cat": 2, "##s": 3}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.WordPiece()
    library.save(str(tmp_path / "tokenizer.json"))
    made = PretrainedTokenizer(path=str(tmp_path))
    assert not made.lossless
    assert made.encode("the cats") == [1, 2, 3]
    assert made.decode([1, 2, 3, made.end]) == "the cats"


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    made = PretrainedTokenizer(path=str(path))
    (tmp_path / "saved").mkdir()
    made.save(tmp_path / "saved")
    path.unlink()
    assert PretrainedTokenizer.load(tmp_path / "saved").encode_batch(TEXTS) == made.encode_batch(TEXTS)


def test_a_file_that_is_not_there_or_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nowhere"):
        PretrainedTokenizer(path=str(tmp_path / "nowhere.json"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"is no tokenizer\.json"):
        PretrainedTokenizer(path=str(tmp_path))
