"""A document that stands in the database under another corpus is known by its text."""

from collections.abc import Callable

import numpy as np
import pytest
from bakeoff.data import Data
from bakeoff.data.retrieval.own import hull, own_documents


def test_documents_are_known_by_their_tokens(make: Callable[..., Data]) -> None:
    one, other = make(["a", "bc", "", "bc", "d"]).store("train"), make(["bc", "x", "", "a", "bc"]).store("train")
    assert own_documents(one, other).tolist() == [3, 0, -1, 0, -1]
    assert own_documents(one, one).tolist() == [0, 1, 2, 3, 4]
    assert own_documents(one, make([], ["a"]).store("train")).tolist() == [-1] * 5
    assert own_documents(make(["a"], []).store("validation"), one).tolist() == []
    both = make(["a", "bc"], ["bc"])
    assert own_documents(both.store("validation"), both.store("train")).tolist() == [-1]


def test_a_run_reaches_from_its_least_to_its_greatest() -> None:
    own = np.array([4, -1, 2, -1, -1])
    documents = np.array([[0, 0], [1, 1], [0, 2], [1, 2], [3, 4], [2, 2]])
    assert hull(own, documents).tolist() == [[4, 4], [-1, -1], [2, 4], [2, 2], [-1, -1], [2, 2]]


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("isolate", [False, True])
def test_no_neighbour_has_the_text_of_a_document_that_its_chunk_touches(
    retrieving: Callable[..., Data], documents: type, ragged: list[str], isolate: bool, split: str
) -> None:
    texts = list(dict.fromkeys(ragged))  # without copies
    mixed = [*texts[::2][::-1], "zzzz", *texts[1::2]]
    data = retrieving(texts, texts[3:20], database=documents(mixed, []), isolate_documents=isolate)
    store, lookup, own = data.store(split), data.lookup(), {"train": texts, "validation": texts[3:20]}[split]
    chunks = data.retrieved.find(split)
    seen = 0
    for row in range(len(chunks.ends)):
        batch = data.rows(split, np.array([row * 16]), length=16, wanted=16)
        for slot, last in enumerate(batch["neighbours_last"][0].tolist()):
            seeing = min(row * 16 + (last if isolate else 16), len(store.tokens) - 1)
            at = np.arange(row * 16 + last - 3, seeing + 1)
            touched = {own[number] for number in np.searchsorted(store.ends, at, side="right")}
            found = chunks.of(np.array([row]))[slot]
            assert not touched & {mixed[number] for number in lookup.documents(found[found >= 0])}
            seen += len(touched)
    assert seen > 50
