"""What judges find in answers, so that they can be counted; and answers to rows of any lengths."""

import pytest
from bakeoff.interfaces.dialogue import Dialogue
from bakeoff.interfaces.reward import Sample
from bakeoff.parts.samplers import Greedy
from bakeoff_align.inference.questions import FindsAnswers, Questions
from bakeoff_align.rewards.exact_match import ExactMatch
from bakeoff_align.rewards.format_reward import FormatReward
from bakeoff_align.rewards.numeric_match import NumericMatch


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so it is\n#### 1,000.50", "1000.5"),
        ("$1000.5", "1000.5"),
        ("5 and 7", "7"),
        ("007", "7"),
        ("12.00", "12"),
        ("100", "100"),
        ("-0.0", "0"),
        (".5", "0.5"),
        ("50%", "50%"),
        ("-3", "-3"),
        ("123456789012345678901234567890123", "123456789012345678901234567890123"),
        ("no idea", ""),
        ("", ""),
    ],
)
def test_numbers(text, answer):
    assert NumericMatch().answer_of(text) == answer


def test_texts():
    assert ExactMatch().answer_of("<scratch>\n1 2\n</scratch>\n Yes \n") == "Yes"
    assert ExactMatch(ignore_case=True).answer_of("#### Yes") == "yes"
    assert ExactMatch().answer_of(" ") == ""


def test_equal_answers_are_equally_right():
    dialogue = Dialogue(prompt=(), answer="1000.5")
    for text in ("1,000.50", "$1000.5", "it is 1000.5"):
        assert NumericMatch().score([Sample(dialogue, text, [], [])]) == [1.0]
        assert NumericMatch().answer_of(text) == NumericMatch().answer_of("1000.5")


def test_who_finds_answers():
    assert isinstance(ExactMatch(), FindsAnswers)
    assert isinstance(NumericMatch(), FindsAnswers)
    assert not isinstance(FormatReward(markers=["a"]), FindsAnswers)


def test_rows_of_any_lengths_are_continued(measured):
    given = measured({"?": {"yes": 1.0}, "x": {"no": 1.0}, "yes": {"end": 1.0}, "no": {"end": 1.0}}, 1)
    given.batch, given.length = 1, 8
    ask, x = (given.data.tokenizer.encode(word)[0] for word in ("?", "x"))
    rows = [[ask], [ask, x], [x, ask], [ask], [ask, ask, x]]
    found = dict(Questions(given, 1, "a task").continued(rows, copies=2, sampler=Greedy(), most=4, purpose=""))
    assert {number: [each.text for each in said] for number, said in found.items()} == {
        0: ["yes"] * 2,
        1: ["no"] * 2,
        2: ["yes"] * 2,
        3: ["yes"] * 2,
        4: ["no"] * 2,
    }
