"""`bakeoff index`: what it makes, what it prints, and what it refuses."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from bakeoff import load_run
from bakeoff.cli import index
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.recipe import Recipe, recipe
from bakeoff.train import fit

WORDS = "the quick brown fox jumps over the lazy dog and runs away from it all; who would not? "


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Ten files of 89 to 890 bytes, of which validation takes one or more."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_text(f"{number}: " + WORDS * (number + 1))
    return folder


@pytest.fixture
def small(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A recipe that retrieves, with a cache of its own."""
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))

    def made(**changed: object) -> Path:
        retrieval = {"retriever": {"use": "flat", "embedder": {"use": "static"}}, "chunk": 16, "k": 2}
        data = {"corpus": {"use": "text_files", "path": str(texts)}, "length": 32, "batch_tokens": 64}
        values = {"extends": "bakeoff:retrieval/index.yaml", "data": {**data, "retrieval": {**retrieval, **changed}}}
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump({**values, "trainer": {"max_steps": 2}, "validation": {"every_steps": None}}))
        return path

    return made


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    lines = capsys.readouterr().out.splitlines()
    return {
        title.strip(): told.strip()
        for title, told in (re.split(r"\s{2,}| (?=data\.)", line, maxsplit=1) for line in lines)
    }


def test_the_database_of_a_recipe_is_made_once(small: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = small()
    assert main(["index", str(path)]) == 0
    told = printed(capsys)
    data = recipe(path).build("data").prepare(progress=False)
    train = list(data.corpus.documents("train"))
    assert told["chunks"] == f"{sum(-(-len(text) // 16) for text in train)} of 16 tokens"
    assert told["documents"] == str(len(train))
    assert re.fullmatch(r"[\d,]+ chunks a second", told["made"])
    assert told["recall@2"].startswith("1.000 of what exact search finds, on ")
    folder = Path(told["folder"])
    assert told["in a recipe"] == f"data.retrieval.index: {folder}"
    assert told["bytes"] == f"{sum(each.stat().st_size for each in folder.rglob('*') if each.is_file()):,}"
    assert data.retrieved.database.folder == folder
    assert main(["index", str(path)]) == 0
    assert printed(capsys)["made"] == "by an earlier call"


def test_a_folder_of_texts_or_a_corpus_stands_for_a_recipe(
    small: Callable[..., Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small()
    folder = tmp_path / "made" / "here.index"
    assert main(["index", str(texts), "data.retrieval.chunk=32", "data.length=32", "--folder", str(folder)]) == 0
    told = printed(capsys)
    assert told["folder"] == str(folder)
    assert told["chunks"].endswith(" of 32 tokens")
    used = index.asked("sotu", ["data.retrieval.k=3"])
    assert used.tree["data"]["corpus"]["use"] == "sotu"
    assert used.tree["data"]["retrieval"]["k"] == 3
    opened = recipe(small(chunk=32, index=str(folder))).build("data").prepare(progress=False).lookup()
    assert f"{len(opened):,} of 32 tokens" == told["chunks"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bakeoff:models/tiny.yaml"], r"tiny\.yaml: data\.retrieval is not set, so that there is nothing to index"),
        (["nowhere"], "nowhere is no recipe, no folder of texts, and no corpus; corpora: .*sotu"),
        (["RECIPE", "data.retrieval.k=1000000"], r"k is 1000000, but the database holds \d+ chunks"),
        (["RECIPE", "data.retrieval.chunk=33"], r"chunk is 33, and data\.length is 32"),
        (["RECIPE", "data.retrieval.chunks=3"], r"has no argument 'chunks'; did you mean 'chunk'"),
        (["RECIPE", "--folder", "TEXTS"], "texts holds something else than this index; give another folder"),
    ],
)
def test_what_cannot_be_indexed_is_one_message(
    small: Callable[..., Path], texts: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    places = {"RECIPE": str(small()), "TEXTS": str(texts)}
    assert main(["index", *[places.get(word, word) for word in words]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(told, captured.err)
    assert len(captured.err.strip().splitlines()) == 1


def test_recall_is_the_share_of_the_exact_neighbours_that_is_found(
    small: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bakeoff.data.retrieval.recall import recall

    lookup = recipe(small()).build("data").prepare(progress=False).lookup()
    held, table = lookup.database.index, lookup.database.table

    class Half:
        """Of two neighbours, it finds the first for every query, and the second for none."""

        def exact(self, texts, k, exclude):  # type: ignore[no-untyped-def]
            found = held.exact(texts, k, exclude)
            documents = table.documents(found.numbers)
            own = table.documents(exclude[:, 0])
            assert (documents != own[:, None]).all()
            return found

        def neighbours(self, texts, k, exclude):  # type: ignore[no-untyped-def]
            found = held.exact(texts, k, exclude)
            found.numbers[:, 1] = -1
            return found

    monkeypatch.setattr(type(lookup.database), "index", property(lambda self: Half()))
    assert recall(lookup) == (0.5, min(256, len(table)))


def test_a_run_that_retrieves_is_saved_and_opens_without_its_index(small: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "index"
    assert main(["index", str(small()), "--folder", str(folder)]) == 0
    made = recipe(small(index=str(folder)))
    fit(made, folder=tmp_path / "run", progress=False)
    again: Recipe = recipe(tmp_path / "run" / "recipe.yaml")
    assert again.full["data"] == made.full["data"]
    assert again.saved()["data"] == made.saved()["data"]
    assert again.hash() == made.hash()
    shutil.rmtree(folder)
    run = load_run(tmp_path / "run")
    assert run.data.store("train").text_bytes
    with pytest.raises(UserError, match=r"index is no index: there is no such folder; make it with: bakeoff index"):
        run.data.lookup()


def test_lanes_and_retrieval_are_refused_before_a_run(small: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=r"data\.retrieval.*trainer\.stateful: false"):
        recipe(small(), ["trainer.stateful=true"]).demands()
