"""Task `best_of_n`, on a model that answers rightly with a known probability: binomial laws within 3 sigma."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
from bakeoff.errors import CapabilityError, UserError
from bakeoff_align.inference import BestOfN

D, N, P = 400, 8, 0.3
NOISE = [f",{i}" for i in range(50)]


def says(p):
    """yes with probability p, else no; then something that says nothing of which."""
    noise = dict.fromkeys(NOISE, 1 / len(NOISE))
    return {"?": {"yes": p, "no": 1 - p}, "yes": noise, "no": noise}


def right(text):
    return float(text.startswith("yes"))


def blind(text):
    return float(text.partition(",")[2])


def asked(measured, **arguments):
    return BestOfN(**{"samples": N, "dialogues": D, "max_new_tokens": 5} | arguments).measure(measured, lambda _: None)


def within(found, p):
    """Of a mean over D questions."""
    return abs(found - p) < 3 * math.sqrt(p * (1 - p) / D)


def test_a_perfect_verifier_follows_the_binomial_law(measured, judge):
    answer = asked(measured(says(P), D), judge=judge(right), reward=judge(right))
    for n, tokens, value, low, high in answer.data["ways"]["best_of_n"]:
        assert within(value, 1 - (1 - P) ** n)
        assert low <= value <= high
        assert tokens == 3 * n  # yes or no, something, the end
    for of, at in zip(answer.data["ways"]["best_of_n"], answer.data["ways"]["pass_at_n"], strict=True):
        assert of == pytest.approx(at)
    assert answer.figures["best_of_n"] == answer.data["ways"]["best_of_n"][-1][2]
    assert within(answer.figures["mean"], P)
    assert answer.figures["tokens"] == 3 * N


def test_a_blind_verifier_gains_nothing(measured, judge):
    answer = asked(measured(says(P), D), judge=judge(right), reward=judge(blind))
    for n, _, value, *_ in answer.data["ways"]["best_of_n"]:
        assert within(value, P), n
    same = asked(measured(says(P), D), judge=judge(right), reward=judge(lambda text: 0.5))
    for _, _, value, *_ in same.data["ways"]["best_of_n"]:
        assert value == pytest.approx(same.figures["mean"], abs=1e-12)


def test_votes_gain_where_more_than_half_are_right(measured, judge):
    answer = asked(measured(says(0.6), D), judge=judge(right), samples=5)
    by_n = {n: value for n, _, value, *_ in answer.data["ways"]["majority"]}
    assert list(by_n) == [1, 2, 4, 5]
    assert within(by_n[1], 0.6)
    assert within(by_n[5], 0.68256)
    assert list(by_n.values()) == sorted(by_n.values())
    assert set(answer.figures) == {"mean", "majority", "pass_at_n", "tokens"}


def test_votes_by_weight(measured, judge):
    few = partial(asked, measured(says(P), 60), dialogues=60, judge=judge(right))
    perfect = few(reward=judge(right))
    # only right answers weigh anything: one is enough
    assert perfect.figures["weighted_majority"] == pytest.approx(perfect.figures["pass_at_n"])
    alike = few(reward=judge(lambda text: 2.0))
    assert alike.figures["weighted_majority"] == pytest.approx(alike.figures["majority"])
    learnt = judge(lambda text: 800 * right(text) - 400)  # logarithms, whose exponentials no float holds
    assert few(reward=learnt, weight="exp").figures == perfect.figures
    with pytest.raises(UserError, match=r"reward Judge is -400 for an answer.*weight: exp"):
        few(reward=learnt)


def test_answers_end_where_they_must(measured, judge):
    cut = asked(measured(says(P), 3), judge=judge(right), max_new_tokens=2)
    assert cut.figures["tokens"] == 2 * N
    narrow = asked(measured(says(P), 3, max_length=2), judge=judge(right), max_new_tokens=2)
    assert narrow.figures["tokens"] == N


def test_questions_are_not_answered_by_the_same_draws(measured, judge):
    small = measured(says(0.5), 40)
    small.batch, small.length = 1, 1  # one question a batch
    answer = asked(small, judge=judge(right), samples=1, dialogues=40)
    assert 0.1 < answer.figures["mean"] < 0.9


def test_equal_seeds_equal_answers(measured, judge):
    first, again, other = (
        asked(measured(says(P), 20, seed=seed), judge=judge(right), reward=judge(blind)) for seed in (0, 0, 1)
    )
    assert first == again
    assert first.figures != other.figures
    assert json.loads(json.dumps(first.data)) == first.data


def test_what_is_shown(measured, judge):
    told = []
    task = BestOfN(judge=judge(right), reward=judge(right), samples=4, dialogues=9, max_new_tokens=5)
    html = task.measure(measured(says(P), 20), told.append).html
    assert told[-1] == {"step": 9, "total": 9}
    assert "9 dialogues, 4 answers to each" in html
    assert "accuracy against answers" in html
    assert "accuracy against tokens drawn for a dialogue, mean" in html
    for name in ("best of n", "majority", "weighted majority", "pass at n"):
        assert html.count(name) >= 2  # in the key and in the table


def test_a_judge_that_finds_no_answers_is_refused(judge):
    class Mute(judge.__base__):
        def score(self, samples):
            return [0.0 for _ in samples]

    with pytest.raises(UserError, match=r"judge Mute does not find the answer.*exact_match"):
        BestOfN(judge=Mute())


@pytest.mark.parametrize("name", ["samples", "dialogues", "max_new_tokens"])
def test_counts_are_at_least_one(judge, name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        BestOfN(judge=judge(right), **{name: 0})


def test_what_cannot_be_asked(measured, judge):
    with pytest.raises(CapabilityError, match=r"best_of_n: the prompt of dialogue 0 has 1 tokens.*max_length is 1"):
        asked(measured(says(P), 3, max_length=1), judge=judge(right))
    with pytest.raises(CapabilityError, match="best_of_n: the validation split of Asked has no dialogue"):
        asked(measured(says(P), 0), judge=judge(right))
    bare = measured(says(P), 3)
    bare.data.template = None
    with pytest.raises(CapabilityError, match=r"best_of_n: the recipe has no data\.template"):
        asked(bare, judge=judge(right))
