"""Task `retrieval`: a reader that copies what it was shown gains exactly what can be copied, and nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate import MEASURES, asked
from bakeoff.evaluate.tasks.chunk_losses import Chunked
from bakeoff.evaluate.tasks.retrieval import Retrieval as Task
from bakeoff.evaluate.tasks.shown_neighbours import deranged, foreign
from bakeoff.interfaces import Corpus, LayerContext, Result
from bakeoff.interfaces.neighbours import NEIGHBOURS
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.retriever import Found, Index, Retriever
from bakeoff.registry import register
from torch import nn

M, V = 8, 259
#: Texts of three chunks each; with the end id, 25 tokens.
TEXTS = [f"{letter * 8}{letter * 4}   {letter}<b>&'{letter * 2}." for letter in "acdegf"]
#: The documents of the database are not those that are evaluated: they have a chunk more, in front.
TRAIN = [f"======={text[0]}{text}" for text in TEXTS]
#: Of each of their chunks the first character alone is one of the last document's.
NEW = ["f1234567fABCDEFGfHIJKLMN", "fNMLKJIHfGFEDCBAf9876543"]
HELD_OUT = [TEXTS[0], NEW[0], TEXTS[3], NEW[1]]
#: What a token costs who knows nothing, and one that is copied.
BLIND, COPIED = math.log2(V), 1.0


@register("copies_of_train")
class Copied(Corpus):
    """Two documents of the validation split are the rest of documents of the train split behind their first chunk."""

    licence = "none"

    def documents(self, split):
        yield from {"train": TRAIN, "validation": HELD_OUT}[split]

    def fingerprint(self):
        return hashlib.sha256(repr([TRAIN, HELD_OUT]).encode()).hexdigest()


@register("by_characters")
class ByCharacters(Retriever):
    """By how many characters are equal at their places; among equals the first."""

    def fingerprint(self):
        return "characters"

    def build(self, texts, folder, progress):
        (folder / "texts.json").write_text(json.dumps(texts[:]))

    def load(self, folder, texts):
        return Characters(json.loads((folder / "texts.json").read_text()))


class Characters(Index):
    def __init__(self, texts):
        self.texts = texts

    def neighbours(self, queries, k, exclude=None):
        assert exclude is None  # the validation split is not the database
        equal = [[sum(map(str.__eq__, query, text)) for text in self.texts] for query in queries]
        numbers = np.argsort(-np.array(equal), axis=1, kind="stable")[:, :k]
        return Found(numbers, np.take_along_axis(np.array(equal, np.float32), numbers, 1))


class Reads(Part):
    kind = "block"
    neighbours_of = M


class Copies(nn.Module):
    """Where a neighbour is the chunk itself, expects what followed it there; else anything alike."""

    layers = ()

    def __init__(self):
        super().__init__()
        self.reads = Reads(LayerContext(d_model=1, vocab_size=V, max_length=64))
        self.embedding = torch.zeros(1)

    def forward(self, sequence, state=None):
        logits = torch.zeros(*sequence.tokens.shape, V)
        sure = math.log(V - 1)  # then softmax gives it one half: one bit
        neighbours = sequence.memory.get(NEIGHBOURS)
        if neighbours is not None:
            for row, slot in (neighbours.last >= 0).nonzero().tolist():
                last = int(neighbours.last[row, slot])
                chunk = sequence.tokens[row, last - M + 1 : last + 1]
                for text, real in zip(neighbours.tokens[row, slot], neighbours.real[row, slot], strict=True):
                    if torch.equal(text[:M], chunk) and bool(real[:M].all()):
                        for ahead in range(min(int(real[M:].sum()), sequence.length - last)):
                            logits[row, last + ahead, text[M + ahead]] = sure
        return Result(logits)


class Head(nn.Module):
    def forward(self, logits, targets, reduce):
        assert reduce == "none"
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


class Oracle(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = Copies(), Head()
        self.context = SimpleNamespace(max_length=64, vocab_size=V)


DATA = {
    "corpus": {"use": "copies_of_train"},
    "data.length": 25,
    "data.batch_tokens": 50,
    "data.retrieval": {"retriever": {"use": "by_characters"}, "chunk": M, "k": 1},
}


@pytest.fixture
def copying(untrained):
    """`copying(**changes)`: the reader that copies, and its data."""

    def make(**changes):
        given = {"data.corpus": {"use": "copies_of_train"}, **{k: v for k, v in DATA.items() if k != "corpus"}}
        return dataclasses.replace(untrained(**given | changes), model=Oracle())

    return make


def figures(measured, **arguments):
    answer = Task(**arguments).measure(measured, lambda numbers: None)
    return answer.figures, answer


def test_the_gain_is_what_was_copied(copying):
    found, answer = figures(copying())
    # of each document: 24 targets, its end id among them, of 23 bytes; what is copied is all behind the first chunk
    saved = 2 * (16 + 1) * (BLIND - COPIED)
    assert found["bits_per_byte_without"] == pytest.approx(4 * 24 * BLIND / (4 * 23), rel=1e-6)
    assert found["gain"] == pytest.approx(saved / (4 * 23), rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(found["bits_per_byte_without"] - found["gain"], rel=1e-9)
    assert found["gain_low"] < found["gain"] < found["gain_high"]
    # no other chunk has found what a chunk of a copy has
    assert found["gain_over_shuffled"] == pytest.approx(found["gain"], rel=1e-9)
    assert 0 < found["gain_over_random"] <= found["gain"] * (1 + 1e-9)
    assert answer.data["pieces"] == ["rows", 4]
    assert json.loads(json.dumps(answer.data)) == answer.data
    assert set(found) <= set(Task.figures)


@pytest.mark.parametrize(
    "changes",
    [{}, {"data.isolate_documents": False}, {"data.length": 20, "data.batch_tokens": 40}, {"validation.tokens": 50}],
    ids=["documents", "one text", "ragged", "a part"],
)
def test_with_what_was_found_it_is_what_validation_measures(copying, changes):
    measured = copying(**changes)
    found, _ = figures(measured)
    assert MEASURES["validation"](measured)["bits_per_byte"] == pytest.approx(found["bits_per_byte"], rel=1e-9)


def test_what_is_copied_is_told_apart_by_overlap(copying):
    found, answer = figures(copying())
    # chunks of copies have all their tokens in common with the database, the others one of eight
    assert [(each["most"], each["chunks"], each["share"]) for each in answer.data["between"]] == [
        (0.125, 6, 0.5),
        (1.0, 6, 0.5),
    ]
    assert found["gain_overlap_125"] == found["gain_overlap_750"] == 0
    # 16 of the 23 bytes in chunks of a copy, and as many bytes that are none
    assert found["gain_overlap_1000"] == pytest.approx(16 * (BLIND - COPIED) / (2 * 23), rel=1e-6)
    low, high = answer.data["between"]
    assert low["found"] == low["without"] == pytest.approx(BLIND, rel=1e-6)
    assert high["found"] == pytest.approx((7 * BLIND + 16 * COPIED) / 23, rel=1e-6)


def test_more_neighbours_and_smaller_databases(copying):
    found, answer = figures(copying(), k=[1, 3], shares=[0.5], candidates=2)
    assert found["bits_per_byte_k_1"] == found["bits_per_byte_k_3"] == found["bits_per_byte"]
    # documents 0, 2 and 4 are left, so that of the two copies one can be copied
    half = (found["bits_per_byte"] + found["bits_per_byte_without"]) / 2
    assert found["bits_per_byte_share_50"] == pytest.approx(half, rel=1e-9)
    assert answer.data["by_k"] == [[1, found["bits_per_byte"]], [3, found["bits_per_byte"]]]
    assert answer.data["by_share"] == [[0.5, found["bits_per_byte_share_50"]], [1.0, found["bits_per_byte"]]]
    assert "gain_overlap_1000" in found


def test_as_many_rows_are_read_as_are_asked_for(copying):
    found, _ = figures(copying(), tokens=50)
    # rows 0 and 2 of four: both copies
    assert found["gain"] == pytest.approx(2 * 17 * (BLIND - COPIED) / (2 * 23), rel=1e-6)


def test_the_same_seed_gives_the_same_and_another_draws_others(copying):
    measured = copying()
    assert figures(measured, seed=3)[0] == figures(measured, seed=3)[0]
    assert deranged(9, 0).tolist() != deranged(9, 1).tolist()


@pytest.mark.parametrize("n", [2, 3, 50])
def test_no_chunk_keeps_its_own_neighbours(n):
    order = deranged(n, 4)
    assert sorted(order.tolist()) == list(range(n))
    assert (order != np.arange(n)).all()


def test_no_control_shows_a_chunk_its_own_document(copying):
    chunked = Chunked(copying(), None, M)
    own = np.repeat([[0, 4], [0, 0], [12, 16], [20, 24]], 3, axis=0)  # of the four documents, three chunks each
    lookup = SimpleNamespace(excluded=lambda store, documents: own)
    numbers = np.tile([3, 4, 12, 23], (12, 1))
    found = foreign(lookup, chunked, numbers)[::3].tolist()
    assert found == [[-1, 4, 12, 23], [3, 4, 12, 23], [3, 4, -1, 23], [3, 4, 12, -1]]


def test_chunks_are_those_of_what_the_model_reads(copying):
    # rows of 20 tokens: 0-19 holds two chunks of the first document; 20-39 its last 5 and 15 of the next; 40-59 has
    # the rest of that, 10 tokens, and 10 of the third
    chunked = Chunked(copying(**{"data.length": 20, "data.batch_tokens": 20}), None, M)
    texts = [bytes(ids).decode() for ids in chunked.ids.tolist()]
    assert texts[:5] == [TEXTS[0][:8], TEXTS[0][8:16], NEW[0][:8], NEW[0][15:23], TEXTS[3][:8]]
    assert chunked.before[:5].tolist() == [-1, 0, -1, -1, -1]
    own = chunked.chunk.reshape(-1, 20)
    # the first token of a row is no place of it, and the last of its places is not read
    assert own[0].tolist() == [0] * 7 + [1] * 8 + [-1] * 5
    assert own[1].tolist() == [-1] * 4 + [2] * 8 + [-1] * 8
    assert chunked.token_places(1).tolist() == list(range(7, 15))


def test_without_documents_apart_a_row_is_cut_as_one(copying):
    chunked = Chunked(copying(**{"data.isolate_documents": False}), None, M)
    assert chunked.before.tolist() == [-1, 0, 1, -1, 3, 4, -1, 6, 7, -1, 9, 10]


def test_what_is_shown_is_text_and_no_markup(copying):
    answer = Task().measure(copying(), lambda numbers: None)
    assert not {"b", "script"} & set(re.findall(r"<(\w+)", answer.html))
    heads = re.findall(r"<h4>(.*?)</h4>", answer.html)
    assert [head.partition(":")[0] for head in heads] == ["The largest gain", "A median gain"]
    assert "+56.1 bits in 8 tokens (64.1 without, 8.0 with); overlap 1.00" in heads[0]
    first = answer.html.split("<h4>")[1]
    (text,) = re.findall(r'<p class="text">(.*?)</p>', first)
    assert unescape(re.sub("<[^>]*>", "", text)) == TEXTS[3][8:]
    assert text.count('class="p6" title="8.02 bits without, 1.00 with"') == 8
    (found,) = re.findall(r'<p class="text found">(.*?)</p>', first)
    assert unescape(re.sub("<[^>]*>", "", found)) == TEXTS[3][8:]
    assert [unescape(mark) for mark in re.findall("<mark>(.*?)</mark>", found)] == [TEXTS[3][16:]]


def test_who_reads_nothing_is_told_what_is_missing(untrained, copying):
    with pytest.raises(CapabilityError, match=r"data\.retrieval is not set"):
        asked(["retrieval"])[0].answer(untrained())
    reader = copying()
    with pytest.raises(CapabilityError, match="no part of the model reads what is retrieved"):
        Task().measure(dataclasses.replace(reader, model=nn.Module()), lambda numbers: None)


def test_a_share_that_holds_too_little_is_told_and_others_go_on(copying):
    measured = copying(**{"data.retrieval.k": 5})
    with pytest.raises(
        CapabilityError, match=r"share of 0\.1 of the database: .*k is 5, but the database holds 4 chunks"
    ):
        Task(shares=[0.1]).measure(measured, lambda numbers: None)


@pytest.mark.parametrize("given", [{"tokens": 0}, {"candidates": 0}, {"k": [0]}, {"shares": [0.0]}, {"shares": [1.5]}])
def test_numbers_that_mean_nothing_are_refused(given):
    with pytest.raises(UserError, match=next(iter(given))):
        asked([{"use": "retrieval", **given}])
