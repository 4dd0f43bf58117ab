"""Task `preference_accuracy`: counts by hand, its interval, and what a run's own objective says."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.evaluate import Measured
from bakeoff.interfaces import Dialogue, Head, LayerContext, Result, Turn
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.train import fit
from bakeoff_align.preferences.preference_accuracy import PreferenceAccuracy
from bakeoff_align.preferences.ranking import ranking
from bakeoff_align.preferences.wilson import wilson
from bakeoff_align.templates import Plain
from scipy.stats import binomtest
from torch import nn

TOKENIZER = ByteTokenizer()
#: Of each token, whatever was before.
P = {**{ord("a"): 0.5, ord("b"): 0.3}, TOKENIZER.end: 0.2}
PAIRS = [("aa", "b"), ("ab", "ba"), ("a", "b")]


class Letters(nn.Module):
    class Backbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Parameter(torch.zeros(TOKENIZER.vocab_size, 1))

        def forward(self, sequence, state=None):
            return Result(sequence.tokens[..., None].double())

    class Head(Head):
        def forward(self, hidden, targets=None, weights=None, reduce="sum"):
            p = torch.tensor([P.get(i, 1e-300) for i in range(TOKENIZER.vocab_size)]).double()
            return p.log().expand(*hidden.shape[:-1], -1)

    def __init__(self, head=Head):
        super().__init__()
        self.context = LayerContext(d_model=1, vocab_size=TOKENIZER.vocab_size, max_length=16)
        self.backbone, self.head = self.Backbone(), head(self.context)


class LikesB(Letters.Head):
    """Scores a text by its last token but one, of which more is better."""

    def score(self, hidden):
        return torch.cat([hidden[:, :1, 0], hidden[:, :-1, 0]], 1)


def measured(pairs=PAIRS, model=None, template=True):
    dialogues = [Dialogue(prompt=(Turn("user", "?"),), completion=one, rejected=other) for one, other in pairs]
    corpus = SimpleNamespace(dialogues=lambda split: iter(dialogues if split == "validation" else []))
    data = SimpleNamespace(corpus=corpus, template=Plain() if template else None, tokenizer=TOKENIZER)
    told = {"batch": 2, "length": 8, "device": "cpu", "autocast": nullcontext, "objective": None}
    return SimpleNamespace(model=model or Letters(), data=data, **told)


def asked(by, *given, **more):
    return PreferenceAccuracy(by=by).measure(measured(*given, **more), lambda numbers: None)


def test_sums_and_means_over_tokens_rank_otherwise():
    """aa costs 1/2 1/2 1/5, less probable than b with 3/10 1/5, but of three tokens."""
    assert asked("sum").figures == pytest.approx({"accuracy": 1.5 / 3, "longer": 2 / 3})
    assert asked("mean").figures["accuracy"] == pytest.approx(2.5 / 3)
    assert asked(None).figures == asked("sum").figures


def test_a_head_that_scores_is_asked_for_the_last_token():
    model = Letters(LikesB)
    assert asked("score", model=model).figures["accuracy"] == pytest.approx((0 + 1 + 0) / 3)
    assert asked(None, model=model).figures == asked("score", model=model).figures


def test_the_report_tells_of_pairs_that_tie_or_are_too_long():
    html = asked("sum", [*PAIRS, ("a" * 40, "b")]).html
    assert "3 pairs of the validation split. A completion is ranked by its log-probability." in html
    assert "1 pairs are longer than the model reads, and left out." in html
    assert "Of 1 pairs both completions are ranked equal" in html


def test_the_report_tells_the_interval():
    found = asked("sum", [("aa", "b"), ("a", "b"), ("b", "a"), ("a", "b")])
    ends = binomtest(2, 4).proportion_ci(method="wilson")
    assert f"<td>50.0 %</td><td>{100 * ends.low:.1f} to {100 * ends.high:.1f} %</td>" in found.html


@pytest.mark.parametrize(("right", "n"), [(0, 5), (5, 5), (3, 7), (180, 240), (1, 1)])
def test_the_interval_is_wilsons(right, n):
    theirs = binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson(right, n) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize(
    ("by", "given", "said"),
    [
        ("sum", {"pairs": [("a", None)]}, "has no pairs of a completion that was chosen"),
        ("sum", {"pairs": [("a" * 40, "b")]}, "each of 1 pairs has a row of over 17 tokens"),
        ("sum", {"template": False}, r"no data\.template"),
        ("score", {}, "the head Head scores nothing"),
        ("objective", {}, "NoneType stands for no reward"),
    ],
)
def test_what_cannot_be_asked_is_told(by, given, said):
    with pytest.raises(CapabilityError, match=said):
        asked(by, **given)


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_is_ranked_by_its_objective_against_what_it_began_from(preferring, tmp_path, begun):
    changes = {"model__blocks__layer__dropout": 0.0}
    if begun:
        changes["weights"] = str(fit(preferring("sft", **changes), folder=tmp_path / "base", progress=False).folder)
    run = fit(preferring("dpo", **changes), folder=tmp_path / "run", progress=False)
    last = {row["name"]: row["value"] for row in run.means if row["step"] == 8}
    known = Measured.of(run.model, run.data, run.recipe)
    found = PreferenceAccuracy().measure(known, lambda numbers: None)
    assert found.figures["accuracy"] == pytest.approx(last["validation.accuracy"])
    assert "ranked by how much more probable it has become" in found.html
    with torch.no_grad():
        scores = torch.cat([ranking(known, None).score(b) for b in run.data.reading(known.objective).validation()])
    margin = known.objective.beta * float((scores[::2] - scores[1::2]).mean())
    assert margin == pytest.approx(last["validation.margin"], rel=1e-4)
