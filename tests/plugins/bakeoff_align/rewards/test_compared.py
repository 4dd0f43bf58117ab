"""Rewards that compare an answer with the right one, or look at its form and length."""

import math

import pytest
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import Dialogue, Reward, Sample, Turn
from bakeoff_align.rewards.exact_match import ExactMatch
from bakeoff_align.rewards.format_reward import FormatReward
from bakeoff_align.rewards.gated import Gated
from bakeoff_align.rewards.length_reward import LengthReward
from bakeoff_align.rewards.numeric_match import NumericMatch
from bakeoff_align.rewards.weighted_sum import WeightedSum


def said(text, answer="42", tokens=1):
    return Sample(Dialogue(prompt=(Turn("user", "?"),), answer=answer), text, [0], [0] * tokens)


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("8 6", "8 6", 1),
        # the scratchpad of Nye et al. for 29 + 57, as it stands in their figure 2
        ("<scratch>\n2 9 + 5 7 ,  C: 0\n2 + 5 , 6 C: 1\n, 8 6 C: 0\n0 8 6\n</scratch>\n8 6\n", "8 6", 1),
        ("<scratch>\n8 6\n</scratch>\n8 7", "8 6", 0),
        ("She has 9 * 2 = $<<9*2=18>>18.\n#### 18", "18", 1),  # a solution of GSM8K
        ("#### 17\nNo:\n#### 18", "18", 1),
        ("#### 18\nNo:\n#### 17", "18", 0),
        ("</scratch> #### 18", " 18 ", 1),
        ("It is 18", "18", 0),
        ("Yes", "yes", 0),
        ("", "18", 0),
    ],
)
def test_exact_match(text, answer, value):
    assert ExactMatch().score([said(text, answer)]) == [value]


def test_exact_match_without_markers_or_case():
    assert ExactMatch(markers=()).score([said("#### 18", "18"), said("18", "18")]) == [0, 1]
    assert ExactMatch(ignore_case=True).score([said("STRASSE", "Straße"), said("no", "yes")]) == [1, 0]


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("42", "42", 1),
        ("42.0", "42", 1),
        ("so 6 * 7 = 42.", "42", 1),
        ("42 of 50", "42", 0),
        ("$1,234.50", "1234.5", 1),
        ("1,234", "1", 0),
        ("1, 2, 3", "3", 1),
        ("-5", "-5", 1),
        ("-$5", "-5", 1),
        ("−5", "-5", 1),
        ("5", "-5", 0),
        ("12-5", "5", 1),  # a difference, no negative number
        ("x = -3.", "-3", 1),
        ("50%", "0.5", 1),
        ("50%", "50", 1),
        ("0.5", "50 %", 1),
        ("50%", "0.5%", 0),
        (".5", "0.5", 1),
        ("0.1 + 0.2 = 0.3", "0.3", 1),
        ("10000000000000000000000000000000000000001", "10000000000000000000000000000000000000000", 0),
        ("none", "42", 0),
        ("", "42", 0),
        ("#### 42\n", "#42", 1),
        ("1 then </scratch> 42", "42", 1),
    ],
)
def test_numeric_match(text, answer, value):
    assert NumericMatch().score([said(text, answer)]) == [value]


def test_numeric_match_with_a_tolerance_and_the_first_number():
    close = NumericMatch(tolerance=0.01)
    assert close.score([said("3.14", "3.15"), said("3.14", "3.16")]) == [1, 0]
    assert NumericMatch(which="first").score([said("42 of 50"), said("50 of 42")]) == [1, 0]


def test_format_reward():
    form = FormatReward(markers=["<think>", "</think>", "<answer>", "</answer>"], at_start=True, at_end=True)
    texts = {
        "<think>a</think><answer>b</answer>": 1,
        " <think></think>\n<answer></answer>\n": 1,
        "<think>a</think><answer>b</answer> or so": 0,
        "Well <think>a</think><answer>b</answer>": 0,
        "<think>a<answer>b</answer></think>": 0,
        "<think>a</think><answer>b</answer><answer>c</answer>": 0,
        "<think>a</think>": 0,
        "": 0,
    }
    assert form.score([said(text) for text in texts]) == list(texts.values())
    anywhere = FormatReward(markers=["<scratch>", "</scratch>"])
    assert anywhere.score([said("so <scratch>1</scratch> 2"), said("</scratch><scratch>")]) == [1, 0]


def test_format_reward_of_a_long_text_takes_no_long_time():
    assert FormatReward(markers=["<a>", "</a>"]).score([said("<a" * 500_000)]) == [0]


def test_length_reward():
    reward = LengthReward(target=4, per_token=0.25)
    assert reward.score([said("", tokens=n) for n in (0, 4, 5, 8)]) == [0, 0, -0.25, -1]
    assert not math.copysign(1, reward.score([said("")])[0]) < 0
    assert LengthReward(target=4, per_token=0.25, cap=0.5).score([said("", tokens=8)]) == [-0.5]


class Refuses(Reward):
    def score(self, samples):
        if any(sample.text == "bad" for sample in samples):
            raise RuntimeError("this one was not to be asked for")
        return [2.0] * len(samples)


class NaN(Reward):
    def score(self, samples):
        return [math.nan] * len(samples)


def test_weighted_sum():
    reward = WeightedSum(rewards=[ExactMatch(), LengthReward(target=1, per_token=1.0)], weights=[2.0, 0.5])
    assert reward.score([said("42"), said("42", tokens=3), said("41", tokens=2)]) == [2, 1, -0.5]
    assert reward.score([]) == []
    with pytest.raises(CapabilityError, match="WeightedSum judges whole answers"):
        reward.score_steps([said("42")])


def test_gated_asks_only_for_what_passes():
    reward = Gated(gate=FormatReward(markers=["ok"]), reward=Refuses(), otherwise=-1.0)
    assert reward.score([said("ok"), said("bad"), said("ok 2")]) == [2, -1, 2]
    assert reward.score([said("bad")]) == [-1]
    half = Gated(gate=LengthReward(target=0, per_token=0.5), reward=Refuses(), threshold=-1.0)
    assert half.score([said("", tokens=2), said("", tokens=3)]) == [2, 0]


@pytest.mark.parametrize(
    "around", [lambda it: WeightedSum(rewards=[it], weights=[1.0]), lambda it: Gated(gate=it, reward=ExactMatch())]
)
def test_what_stands_inside_is_named_where_it_is_wrong(around):
    with pytest.raises(UserError, match="reward NaN is nan for the answer 'x'"):
        around(NaN()).score([said("x")])
    with pytest.raises(UserError, match="reward Refuses failed: RuntimeError: this one"):
        around(Refuses()).score([said("bad")])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ExactMatch(markers=["a", ""]), "'exact_match': markers holds an empty text"),
        (lambda: ExactMatch().score([said("1", None)]), "compares with the right answer.*prompt ends '\\?'"),
        (lambda: NumericMatch(which="middle"), "which is 'middle'; it is one of last, first"),
        (lambda: NumericMatch(tolerance=-1.0), "tolerance is -1.0; it must be 0 or more"),
        (lambda: NumericMatch(tolerance=math.nan), "tolerance is nan"),
        (lambda: NumericMatch().score([said("1", "x")]), "the right answer 'x' holds none: use exact_match"),
        (lambda: FormatReward(markers=[]), r"markers is \[\]; it takes texts, and at least one"),
        (lambda: FormatReward(markers=["<a>", "<a>"]), "marker '<a>' holds marker '<a>'"),
        (lambda: LengthReward(target=-1), "target is -1; it must be at least 0"),
        (lambda: LengthReward(target=1, per_token=0.0), "per_token is 0.0; it must be positive"),
        (lambda: LengthReward(target=1, cap=math.inf), "cap is inf"),
        (lambda: WeightedSum(rewards=[ExactMatch()], weights=[1.0, 2.0]), "has 1 rewards and 2 weights"),
        (lambda: WeightedSum(rewards=[], weights=[]), "has 0 rewards and 0 weights"),
        (lambda: WeightedSum(rewards=[ExactMatch()], weights=[math.inf]), "a weight is inf"),
        (lambda: Gated(gate=ExactMatch(), reward=ExactMatch(), threshold=math.nan), "threshold is nan"),
    ],
)
def test_slips_are_named(make, reason):
    with pytest.raises(UserError, match=reason):
        make()
