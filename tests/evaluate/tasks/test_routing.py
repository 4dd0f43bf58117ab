"""What is told of experts, against numbers by hand: a router whose choices are known from the token."""

from __future__ import annotations

import math
import re
from html import unescape

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.evaluate import asked
from bakeoff.evaluate.tasks.routed import read
from bakeoff.evaluate.tasks.routing import classes_of, told
from bakeoff.evaluate.tasks.token_classes import CLASSES
from bakeoff.interfaces import Capabilities, Router, Routing
from bakeoff.registry import find, names, register

E = 4


@register("by_remainder")
class ByRemainder(Router):
    """Token t wants experts t and t + 1, modulo 4, the second more; from 40 on it gets neither, 3 only the first."""

    gives = ("probabilities",)
    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True, bidirectional=True)

    def route(self, x, sequence):
        t = sequence.tokens.flatten()
        wanted = torch.stack([t % E, (t + 1) % E], 1)
        lost = torch.stack([t >= 40, (t >= 40) | (t == 3)], 1)
        weights = torch.tensor([0.4, 0.6]).expand(len(t), 2)
        even = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(len(t), E)
        return Routing(wanted.masked_fill(lost, E), weights, probabilities=even, wanted=wanted)

    def pairs(self, tokens):
        return 2 * tokens

    def flops(self, queries, keys):
        return 0


def mixture(router, **more):
    expert = {"use": "gated_mlp", "width": 8}
    return {"use": "mixture_of_experts", "n_experts": E, "expert": expert, "router": router, **more}


@pytest.fixture
def routed(untrained):
    """`routed(router, **changes)`: a model with a mixture of that router in its layers."""

    def make(router, **changes):
        return untrained(**{"model.blocks.layer.feed_forward": mixture(router), "data.length": 128, **changes})

    return make


BATCH = {
    "tokens": torch.tensor([[0, 1, 2, 3, 41], [4, 4, 5, 8, 0]]),
    "documents": torch.tensor([[0, 0, 0, 1, 1], [2, 2, 2, 2, 2]]),
    "real": torch.tensor([[True] * 5, [True] * 4 + [False]]),
}
#: By hand: choices of tokens 0 1 2 3 41 | 4 4 5 8.
FIRST = [1, 2, 3, 3, E, 1, 1, 2, 1]
CHOICES = [1 + 2 + 1, 4 + 2, 2 + 1 + 1 - 1 + 0, 1 + 1]


@pytest.fixture
def text(routed):
    model = routed({"use": "by_remainder"}, **{"model.depth": 2}).model
    return read(model, [BATCH])


def test_choices_are_those_of_real_tokens(text):
    assert text.tokens.tolist() == [0, 1, 2, 3, 41, 4, 4, 5, 8]
    assert text.follows.tolist() == [False, True, True, False, True, False, True, True, True]
    assert text.starts == [0, 5]
    assert list(text.layers) == ["0", "1"]
    choices = text.layers["1"]
    assert choices.first.tolist() == FIRST
    assert choices.lost.tolist() == [0, 0, 0, 1, 2, 0, 0, 0, 0]


def test_numbers_of_a_layer(text):
    classes = torch.tensor([0, 0, 1, 1, 2, 0, 0, 0, 1])
    layer = told(text, text.layers["0"], classes, 2)
    counts = torch.bincount(text.layers["0"].experts.flatten(), minlength=E + 1)[:E]
    # experts t: 0 1 2 3 . 0 0 1 0; experts t + 1: 1 2 3 . . 1 1 2 1
    assert counts.tolist() == [4, 6, 3, 2]
    assert layer.load.tolist() == pytest.approx([4 / 15, 6 / 15, 3 / 15, 2 / 15])
    assert layer.numbers["max_violation"] == pytest.approx(6 / 15 * 4 - 1)
    assert layer.numbers["dropped"] == pytest.approx(3 / 18)
    assert layer.numbers["unrouted"] == pytest.approx(1 / 9)
    assert layer.numbers["entropy"] == pytest.approx(math.log(2))
    # pairs of neighbours, without the token that no expert took: 0 1, 1 2 | 4 4, 4 5, 5 8
    assert layer.numbers["repeated"] == pytest.approx(1 / 5)
    assert layer.numbers["shared"] == pytest.approx(5 / 5)
    # first choices 1 2 3 3 1 1 2 1: 4, 2 and 2 of 8
    assert layer.numbers["repeated_by_chance"] == pytest.approx((16 + 4 + 4) / 64, abs=0.02)
    assert layer.classes[:3].tolist() == [[0, 3, 2, 0], [0, 1, 0, 2], [0, 0, 0, 0]]
    assert layer.frequent == [[], [(4, 2), (0, 1)], [(1, 1), (5, 1)], [(2, 1), (3, 1)]]


def test_figures_are_means_over_layers_and_text_is_shown_whole(routed):
    measured = routed({"use": "by_remainder"}, **{"model.depth": 5})
    (answer,) = [one.answer(measured) for one in asked([{"use": "routing", "tokens": 512, "length": 40}])]
    label = "routing(length=40, tokens=512)"
    assert answer.figures[f"{label}.entropy"] == pytest.approx(math.log(2))
    shown = re.findall(r'<p><b>Layer (\d)</b></p><p class="text">(.*?)</p>', answer.html, re.S)
    assert [layer for layer, _ in shown] == ["0", "2", "4"] * 2
    plain = [unescape(re.sub(r"<[^>]*>", "", text)) for _, text in shown]
    tokens = measured.data.store("validation").tokens
    assert plain[0] == plain[1] == measured.data.tokenizer.decode(tokens[:40])
    # bytes from 40 on, but for the blank, are taken by no expert
    spans = re.findall(r'<span class="e(\d)" title="\d">(.*?)</span>', shown[0][1])
    assert {(expert, unescape(text)) for expert, text in spans} <= {(str((ord(c) + 1) % E), c) for c in " !\"#$%&'"}


def test_what_the_text_says_is_no_markup(routed):
    measured = routed({"use": "top_k"})
    text = "<img src=x> & <script>"
    measured.data.store("validation").tokens = torch.tensor(list(text.encode() * 20)).numpy()
    html = asked([{"use": "routing", "passages": 1, "length": len(text)}])[0].answer(measured).html
    assert not {"img", "script"} & set(re.findall(r"<(\w+)", html))
    (painted,) = re.findall(r'<p class="text">(.*?)</p>', html)
    assert unescape(re.sub(r"<[^>]*>", "", painted)) == text


def test_the_same_as_what_training_records(routed):
    from bakeoff_moe.load import finished, load_sums

    measured = routed({"use": "top_k"})
    heard = []
    (router,) = [m for m in measured.model.modules() if isinstance(m, Router)]
    hook = router.register_forward_hook(lambda module, given, routing: heard.append(routing))
    text = read(measured.model, [{"tokens": BATCH["tokens"]}])
    hook.remove()
    mine = told(text, text.layers["0"], classes_of(text.tokens, measured.data.tokenizer), 0)
    theirs = finished(load_sums(heard[0], None, E))
    assert mine.load.tolist() == pytest.approx(theirs["load"].tolist())
    for name in ("max_violation", "entropy", "dropped", "unrouted"):
        assert mine.numbers[name] == pytest.approx(float(theirs[name]), abs=1e-6), name


@pytest.mark.parametrize("router", [entry.name for entry in names("router") if entry.name != "soft_mixture"])
def test_any_router_can_be_asked(routed, router):
    cls = find(router, "router")
    measured = routed({"use": router, **cls.examples()[0]})
    figures = asked([{"use": "routing", "tokens": 256}])[0].answer(measured).figures
    assert all(map(math.isfinite, figures.values()))
    assert ("routing(tokens=256).entropy" in figures) == ("probabilities" in cls.gives)


def test_a_soft_router_gives_tokens_no_choices(routed):
    measured = routed({"use": "soft_mixture", **find("soft_mixture", "router").examples()[0]})
    with pytest.raises(CapabilityError, match="SoftMixture mixes tokens: no token has experts of its own"):
        asked(["routing"])[0].answer(measured)


def test_a_model_without_a_mixture_is_told_in_one_message(untrained):
    with pytest.raises(CapabilityError, match="Decoder has no router: no layer of the model is a mixture of experts"):
        asked(["routing"])[0].answer(untrained(**{"data.length": 128}))


def test_classes_of_tokens(untrained):
    measured = untrained()
    found = classes_of(torch.tensor(list(b"aB 1\n")), measured.data.tokenizer)
    assert [CLASSES[i] for i in found.tolist()] == ["letters", "capitalised", "whitespace", "digits", "newlines"]


@pytest.mark.parametrize("given", [{"tokens": 1}, {"passages": -1}, {"length": 0}])
def test_numbers_that_mean_nothing_are_refused(given):
    from bakeoff.errors import UserError

    with pytest.raises(UserError, match=next(iter(given))):
        asked([{"use": "routing", **given}])
