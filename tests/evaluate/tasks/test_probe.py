"""The probe on a mixer that counts, on tiny matrices, and on LSTMs whose cells are known otherwise."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate import asked
from bakeoff.evaluate.tasks.hidden import Hidden, reading
from bakeoff.evaluate.tasks.probe import Probe, judged, page
from bakeoff.interfaces import Corpus, Result, SequenceMixer
from bakeoff.parts.tokenizers.byte import ByteTokenizer


class Counts(SequenceMixer):
    """Channel 5 is how many of the bytes so far are "+", less those that are "-"; the others hold noise."""

    def forward(self, x, sequence, state=None):
        steps = (sequence.tokens == ord("+")).int() - (sequence.tokens == ord("-")).int()
        if sequence.real is not None:
            steps = steps * sequence.real
        y = torch.randn(x.shape, generator=torch.Generator().manual_seed(sequence.length))
        y[:, :, 5] = steps.cumsum(1).float()
        return Result(y)


class Signs(Corpus):
    """Texts of "+" and "-", of class 1 where there are more "+"."""

    licence = "none"

    def labelled(self, split):
        for i in range(80):
            text = f"text {i} " + "+-"[i % 2] * (i % 3 + 1) + "+-" * (i % 4)
            yield text, int(text.count("+") > text.count("-"))

    def documents(self, split):
        yield from (text for text, _ in self.labelled(split))

    def fingerprint(self):
        return "signs"


@pytest.fixture
def counting(untrained):
    measured = untrained()
    measured.model.backbone.layers[0].mixer = Counts(measured.model.context)
    return measured


def test_a_unit_that_knows_is_found_and_texts_are_coloured_by_it(counting):
    answer = Probe(corpus=Signs(), shown=1).measure(counting, lambda numbers: None)
    assert answer.figures == {"accuracy": 1.0, "unit_accuracy": 1.0, "chance": 0.5, "kept": 1.0, "unit": 5.0}
    assert (
        "Unit 5 of 16 (output of the mixer of layer 0) alone tells the class of 100.0 % of 40 held-out" in answer.html
    )
    # the first held-out texts of each class are numbers 40 and 41, "+" twice and "-" three times, then "+-" once:
    # counts of 0 up to 2, 1 and 0; the threshold stands between -1 and 1, so that 3 is full colour
    shown = re.findall(r'<p class="shades">(.*?)</p>', answer.html)
    assert shown[0] == "text 40 <span class=p2>+</span><span class=p4>+</span>"
    assert shown[1].startswith("text 41 <span class=n2>-</span><span class=n4>-</span><span class=n6>-</span>")


def test_figures_of_a_tiny_matrix():
    fitted = torch.tensor([[0.0, 3], [1, 1], [2, 2], [9, 0], [8, 1], [7, 3], [0, 0], [9, 2]]).double()
    y = torch.tensor([0.0, 0, 0, 1, 1, 1, 0, 1]).double()
    held = torch.tensor([[1.0, 9], [8, 9], [4, 9], [5, 9]]).double()
    figures, unit = judged(fitted, y, held, torch.tensor([0.0, 1, 1, 1]).double())
    assert (unit.number, unit.threshold, unit.sign) == (0, 4.5, 1)  # between 2 and 7
    assert figures["unit_accuracy"] == 0.75  # 4 is said to be of class 0
    assert (figures["chance"], figures["unit"], figures["kept"]) == (0.75, 0.0, 1.0)


def test_a_page_by_hand():
    html = page("told & true", [([97, 98, 99], 1, [0.5, -1.0, 0.0])], ByteTokenizer())
    assert "<p>told &amp; true</p>" in html
    assert '<p class="shades"><span class=p3>a</span><span class=n6>b</span>c</p>' in html


@pytest.mark.parametrize("name", ["lstm", "multiplicative_lstm"])
def test_cells_are_read_after_each_token_and_after_the_last_of_ragged_texts(untrained, name):
    measured = untrained({"use": name, "width": 12})
    texts = [[97, 98, 99, 100], [101], [102, 103]]
    with reading(measured.model, 0, None) as hidden:
        assert hidden.of == "c"
        last, traces = hidden.last(texts), [hidden.trace(ids) for ids in texts]
    assert last.shape == (3, 12)
    for row, trace, ids in zip(last, traces, texts, strict=True):
        assert trace.shape == (len(ids), 12)
        torch.testing.assert_close(row, trace[-1], atol=1e-6, rtol=0)
    state = measured.model.empty_state(1, 4)
    after = measured.model.logits(torch.tensor([texts[0]]), state)[1].layers[0]["mixer"].c
    torch.testing.assert_close(last[:1].float(), after, atol=1e-6, rtol=0)


def test_outputs_are_those_of_the_mixer(untrained):
    measured = untrained({"use": "lstm"})
    with reading(measured.model, -1, "output") as hidden:
        output = hidden.trace([97, 98, 99])
        torch.testing.assert_close(hidden.last([[97, 98, 99], [97]])[0], output[-1], atol=1e-6, rtol=0)
    with reading(measured.model, 0, "h") as hidden:  # without a projection the output is h
        torch.testing.assert_close(hidden.trace([97, 98, 99]), output, atol=1e-6, rtol=0)
    assert not measured.model.backbone.layers[0].mixer._forward_hooks
    with reading(untrained().model, 0, None) as hidden:
        assert hidden.of == "output"


def test_what_cannot_be_read_is_told(untrained, counting):
    measured = untrained({"use": "lstm"})
    with pytest.raises(UserError, match="layer is 1; the model has 1, 0 to 0"):
        Probe(layer=1).measure(measured, lambda numbers: None)
    with pytest.raises(UserError, match="the mixer's state has no 'd'; it has h, c, or 'output'"):
        Probe(of="d").measure(measured, lambda numbers: None)
    with pytest.raises(CapabilityError, match="layer 0 has no mixer"):
        Probe().measure(untrained(**{"model.blocks.layer.mixer": None}), lambda numbers: None)
    with pytest.raises(CapabilityError, match="Counts keeps no state"):
        Probe(of="c", corpus=Signs()).measure(counting, lambda numbers: None)

    class OneClass(Signs):
        def labelled(self, split):
            yield from ((text, 1) for text, _ in super().labelled(split))

    with pytest.raises(UserError, match=r"probe tells class 1 from class 0, .* has classes \[1\]"):
        Probe(corpus=OneClass()).measure(measured, lambda numbers: None)


def test_texts_longer_than_the_model_are_read_from_their_end_back(untrained, monkeypatch):
    measured = untrained({"use": "lstm"})
    measured.model.context = dataclasses.replace(measured.model.context, max_length=3)
    read = []
    last = Hidden.last
    monkeypatch.setattr(Hidden, "last", lambda self, ids: read.extend(ids) or last(self, ids))
    Probe(shown=0).measure(measured, lambda numbers: None)
    assert {len(ids) for ids in read} == {3}
    text = next(measured.data.corpus.labelled("validation"))[0]
    assert bytes(read[0]).decode() == text[-3:]


def test_the_same_again(untrained):
    (task,) = asked([{"use": "probe", "shown": 0}])
    measured = untrained({"use": "lstm"})
    assert task.answer(measured) == task.answer(measured)
