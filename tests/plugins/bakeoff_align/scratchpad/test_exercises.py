"""Exercises: to the byte as they are published, and right as Python itself works them out."""

import json
import random
import re

import pytest
from bakeoff.errors import UserError
from bakeoff_align.scratchpad import addition
from bakeoff_align.scratchpad.draws import Draws
from bakeoff_align.scratchpad.forms import FORMS, Scratchpad
from bakeoff_align.scratchpad.judging import labels
from bakeoff_align.scratchpad.known import EXERCISES, exercises

# Nye et al. 2021, figure 2, without its comments, which are no part of the target; its copies have 83 + 76 too
PUBLISHED = {
    ("addition", "2 9 + 5 7"): "2 9 + 5 7 ,  C: 0|2 + 5 , 6 C: 1|, 8 6 C: 0|0 8 6|8 6",
    ("addition", "8 3 + 7 6"): "8 3 + 7 6 ,  C: 0|8 + 7 , 9 C: 0|, 5 9 C: 1|1 5 9|1 5 9",
    ("polynomial", "Evaluate -7*x**2 + 7*x + 5 at x = 1"): "-7*x**2: -7|7*x: 7|5: 5|total: 5",
}
# by hand: 29 * 7 = 203, 29 * 50 = 1450; 1 0 1 has its second one at the end; the smallest first
BY_HAND = {
    ("multiplication", "2 9 * 5 7"): "2 9 * 5 7 ,  T: 0|2 9 * 5 , 2 0 3 T: 2 0 3|, 1 4 5 0 T: 1 6 5 3|1 6 5 3",
    ("parity", "1 0 1"): "1 : 1|0 : 1|1 : 0|0",
    ("sorting", "3 1 2"): "3 1 2 ,|3 2 , 1|3 , 1 2|, 1 2 3|1 2 3",
    ("program", "x = 3\noutput = x * 4"): 'state: {}|line: x = 3|state: {"x": 3}|line: output = x * 4|'
    'state: {"x": 3, "output": 12}|12',
    ("polynomial", "Evaluate x**3 - x - 2 at x = -2"): "x**3: -8|-x: 2|-2: -2|total: -8",
}


def python_says(name, text):
    """The answer, by Python."""
    if name == "polynomial":
        polynomial, x = re.fullmatch(r"Evaluate (.*) at x = (.*)", text).groups()
        return f"total: {eval(polynomial, {'x': int(x)})}"
    if name == "program":
        known = {}
        exec(text, {}, known)
        return str(known["output"])
    if name == "sorting":
        return " ".join(sorted(text.split()))
    if name == "parity":
        return str(sum(map(int, text.split())) % 2)
    return " ".join(str(eval(re.sub(r"(?<=\d) (?=\d)", "", text))))


@pytest.mark.parametrize(("asked", "target"), [*PUBLISHED.items(), *BY_HAND.items()])
def test_the_target_to_the_byte(asked, target):
    name, text = asked
    *lines, answer = target.split("|")
    expected = "\n".join(["<scratch>", *lines, "</scratch>", answer])
    assert Scratchpad().right(exercises(name), text) == expected


def test_the_answers_of_ten_thousand_sums_are_read_out_of_their_targets():
    draws, sort, form = random.Random(0), exercises("addition"), Scratchpad()
    for _ in range(10_000):
        a, b = (draws.randrange(10 ** draws.randint(1, 8)) for _ in range(2))
        target = form.right(sort, addition.asked(a, b))
        assert int(sort.read(target).replace(" ", "")) == a + b
        carry, *digits = target.splitlines()[-3].split()
        assert int(carry) == int(len(str(a + b)) > len(digits))  # the first digit of the last line


@pytest.mark.parametrize("name", EXERCISES)
def test_answers_are_those_of_python_and_lengths_those_that_were_asked_for(name):
    sort, draws = exercises(name), Draws(0, "here")
    for number in range(600):
        length = 1 + number % 6
        text = sort.drawn(length, draws)
        assert sort.length(text) == length
        assert sort.answer(text) == python_says(name, text)
        assert sort.concluded(text, sort.worked_out(text)) == sort.answer(text)
        assert sort.read(Scratchpad().right(sort, text)) == sort.answer(text)


def test_traces_hold_the_variables_that_python_has_after_each_line():
    sort, draws = exercises("program"), Draws(1, "here")
    for _ in range(100):
        text = sort.drawn(5, draws)
        known, expected = {}, ["state: {}"]
        for line in text.splitlines():
            exec(line, {}, known)
            expected += [f"line: {line}", f"state: {json.dumps(known)}"]
        assert sort.worked_out(text) == expected


def test_numbers_of_one_draw_are_as_long_as_asked_and_all_may_come():
    sort, draws = exercises("addition"), Draws(0, "here")
    drawn = {sort.drawn(1, draws) for _ in range(3000)}
    assert drawn == {f"{a} + {b}" for a in range(10) for b in range(10)}
    assert not any(re.search(r"(^|\+ )0", sort.drawn(3, draws)) for _ in range(300))


def test_what_follows_from_a_slip_is_worked_out_on():
    """By hand: 9 + 7 = 15 in place of 16 leaves a 5 behind, and 85 in the end."""
    sort, text = exercises("addition"), "2 9 + 5 7"
    lines = sort.worked_out(text, ["2 9 + 5 7 ,  C: 0", "2 + 5 , 5 C: 1"])
    assert lines[2:] == [", 8 5 C: 0", "0 8 5"]
    assert sort.concluded(text, lines) == "8 5"
    # a carry that was forgotten
    assert sort.worked_out(text, ["2 9 + 5 7 ,  C: 0", "2 + 5 , 6 C: 0"])[2:] == [", 7 6 C: 0", "0 7 6"]
    sort, text = exercises("program"), "x = 3\noutput = x * 4"
    lines = sort.worked_out(text, ["state: {}", "line: x = 3", 'state: {"x": 5}'])
    assert lines[3:] == ["line: output = x * 4", 'state: {"x": 5, "output": 20}']


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EXERCISES)
def test_a_wrong_answer_is_right_up_to_its_slip_and_never_in_the_end(name, form):
    sort, form, draws = exercises(name), FORMS[form](), Draws(0, "here")
    slips = set()
    for number in range(200):
        text = sort.drawn(2 + number % 4, draws)
        right, wrong = form.right(sort, text).splitlines(), form.wrong(sort, text, draws).splitlines()
        assert len(wrong) == len(right)
        assert sort.read("\n".join(wrong)) != python_says(name, text)
        first = next(i for i, pair in enumerate(zip(right, wrong, strict=True)) if pair[0] != pair[1])
        slips.add(first / len(right))
        # at the slip one digit is another, and nothing else
        assert sum(a != b for a, b in zip(right[first], wrong[first], strict=True)) == 1
        assert re.sub(r"\d", "#", right[first]) == re.sub(r"\d", "#", wrong[first])
        assert not re.search(r"(?<!\d)0\d|-0", wrong[first])
        if wrong[first] != wrong[-1]:  # all behind the slip follows from it
            inner = slice(1, -2)
            assert sort.worked_out(text, wrong[1 : first + 1]) == wrong[inner]
    assert len(slips) > 4 or len(right) == 1


def test_bits_and_carries_slip_to_what_they_can_be():
    sums, draws = exercises("addition"), Draws(0, "here")
    carries = {sums.slipped("2 + 5 , 6 C: 1", draws)[-1] for _ in range(200)}
    assert carries == {"0", "1"}
    bits = {exercises("parity").slipped("1 : 0", draws) for _ in range(50)}
    assert bits == {"0 : 0", "1 : 1"}


def test_a_step_is_right_where_it_is_the_one_that_belongs_there():
    right = ["a\n", "b\n", "c"]
    assert labels(["a\n", "x\n", "c"], right) == (1, 0, 1)
    assert labels(["a\n", "b"], right) == (1, 1)
    assert labels(["a\n", "b\n", "c\n", "c"], right) == (1, 1, 1, 0)
    assert labels(["b\n", "a\n"], right) == (0, 0)


def test_a_sort_that_is_unknown_is_told_with_the_nearest():
    with pytest.raises(UserError, match=r"'adition'.*did you mean 'addition'\?.*sorting"):
        exercises("adition")
