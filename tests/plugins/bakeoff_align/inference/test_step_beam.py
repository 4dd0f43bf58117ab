"""Task `step_beam`, on a model of which every answer is known."""

from __future__ import annotations

import pytest
from bakeoff import complete
from bakeoff.errors import UserError
from bakeoff_align.inference import StepBeam

#: The right answer begins less likely than the wrong one, and goes on less likely.
FOLLOWS = {
    "?": {"a\n": 0.6, "b\n": 0.4},
    "a\n": {"no": 1.0},
    "b\n": {"c\n": 0.4, "d\n": 0.6},
    "c\n": {"yes": 1.0},
    "d\n": {"no": 1.0},
}
WHOLE = "b\nc\nyes"


def right(text):
    return float(text == WHOLE)


def process(text):
    """How much of the right answer stands there."""
    return float(len(text)) if WHOLE.startswith(text) else 0.0


def asked(measured, judge, **arguments):
    given = {"reward": judge(process), "judge": judge(right), "beams": [4], "branches": 16, "dialogues": 20}
    return StepBeam(**given | arguments).measure(measured, lambda _: None)


def test_it_finds_what_greedy_does_not(measured, judge):
    model = measured(FOLLOWS, 20)
    (greedy,) = complete(model.model, model.data.tokenizer, [model.data.tokenizer.encode("?")])
    assert greedy.text == "a\nno"
    assert asked(model, judge).figures["accuracy"] == 1.0


def test_tokens_are_counted(measured, judge):
    """4 beams, 16 branches, prompts of a token.

    First round: 64 draws of a token; a and b are left. Second: a goes on with no and its end, b with c or d: 16 x 2 +
    16. Third: c and d go on with a word and its end: 2 x 16 x 2. Read: 1, 2 x 2, 2 x 3.
    """
    answer = asked(measured(FOLLOWS, 20), judge)
    assert answer.figures["tokens"] == 64 + 48 + 64
    assert answer.figures["tokens_read"] == 1 + 4 + 6


def test_one_beam_of_one_branch_is_a_draw(measured, judge):
    answer = asked(measured(FOLLOWS, 600), judge, beams=[1], branches=1, dialogues=600)
    assert abs(answer.figures["accuracy"] - 0.16) < 3 * (0.16 * 0.84 / 600) ** 0.5
    # a, no, end; b, c or d, a word, end
    assert abs(answer.figures["tokens"] - (3 * 0.6 + 4 * 0.4)) < 3 * (0.24 / 600) ** 0.5


def test_a_curve_over_beams(measured, judge):
    answer = asked(measured(FOLLOWS, 100), judge, beams=[4, 1], branches=2, dialogues=100)
    points = answer.data["ways"]["step_beam"]
    assert [point[0] for point in points] == [1, 4]
    assert points[0][1] < points[1][1]
    # of one beam: b among 2, then c among 2; of four: b among 8, then c among 2
    for (_, _, value, *_), draws in zip(points, (2, 8), strict=True):
        p = (1 - 0.6**draws) * (1 - 0.6**2)
        assert abs(value - p) < 3 * (p * (1 - p) / 100) ** 0.5
    assert answer.figures["accuracy"] == points[-1][2]
    assert "accuracy against beams" in answer.html


def test_what_has_ended_is_kept_and_may_win(measured, judge):
    wrong = judge(lambda text: float(text.startswith("a")))  # thinks more of the other answer
    answer = asked(measured(FOLLOWS, 20), judge, reward=wrong)
    assert answer.figures["accuracy"] == 0.0


def test_what_can_go_on_is_judged_as_cut_off(measured, judge):
    seen = set()

    class Listening(judge):
        def score(self, samples):
            seen.update((sample.text, sample.reason) for sample in samples)
            return super().score(samples)

    asked(measured(FOLLOWS, 5), judge, reward=Listening(process))
    assert {("b\n", "length"), ("b\nc\n", "length"), ("b\nc\nyes", "end"), ("a\nno", "end")} <= seen


def test_a_step_is_cut_and_an_answer_too(measured, judge):
    endless = {"?": {"x": 1.0}, "x": {"x": 1.0}}
    longest = judge(lambda text: float(len(text)))

    def found(steps, step_tokens, max_length=16):
        seen = []
        listening = judge(lambda text: float(seen.append(text) or 1))
        given = {"beams": [1], "branches": 1, "dialogues": 1, "steps": steps, "step_tokens": step_tokens}
        answer = StepBeam(reward=longest, judge=listening, **given).measure(
            measured(endless, 1, max_length), lambda _: None
        )
        return *seen, answer.figures["tokens"]

    assert found(3, 4) == ("x" * 12, 12)
    assert found(3, 5, max_length=9) == ("x" * 8, 8)


def test_progress_and_equal_seeds(measured, judge):
    told = []
    task = StepBeam(reward=judge(process), judge=judge(right), beams=[1, 2], branches=2, dialogues=5, steps=4)
    first = task.measure(measured(FOLLOWS, 5), told.append)
    assert told[0] == {"step": 0, "total": 8}
    assert [each["step"] for each in told] == sorted(each["step"] for each in told)
    assert task.measure(measured(FOLLOWS, 5), told.append) == first


@pytest.mark.parametrize(
    ("name", "value"), [("branches", 0), ("dialogues", 0), ("steps", 0), ("step_tokens", 0), ("beams", [0, 2])]
)
def test_counts_are_at_least_one(judge, name, value):
    with pytest.raises(ValueError, match="is 0"):
        StepBeam(**{"reward": judge(right), "judge": judge(right), name: value})


def test_an_empty_stop_is_refused(judge):
    with pytest.raises(UserError, match="stop is empty"):
        StepBeam(reward=judge(right), judge=judge(right), stop="")
