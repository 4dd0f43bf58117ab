"""Accuracy by length, with somebody who can do short sums only."""

import pytest
from bakeoff.errors import CapabilityError
from bakeoff.parts.corpora.reviews import Reviews
from bakeoff_align.reasoning.length_generalisation import LengthGeneralisation
from bakeoff_align.scratchpad.corpora import ScratchpadCorpus
from bakeoff_align.scratchpad.forms import Scratchpad
from bakeoff_align.scratchpad.known import exercises


def corpus(**changed):
    given = {"task": "addition", "lengths": [2, 4], "validation_lengths": [2, 6], "count": 100, "validation_count": 50}
    return ScratchpadCorpus(**{**given, **changed})


def says(text):
    """Right up to 4 digits, and half of the sums of 5."""
    sort = exercises("addition")
    text = text.removesuffix("\n")
    length = sort.length(text)
    can = length <= 4 or (length == 5 and int(text[0]) % 2 == 0)
    return Scratchpad().right(sort, text) if can else "<scratch>"


def test_shares_stand_by_length_with_the_range_that_was_trained(measured):
    made, _ = measured(corpus(), says)
    told = []
    found = LengthGeneralisation().measure(made, told.append)
    of_five = [each.prompt[0].text for each in corpus().dialogues("validation") if each.details["length"] == 5]
    share = sum(int(text[0]) % 2 == 0 for text in of_five) / 10
    assert 0 < share < 1
    assert found.data["trained"] == [2, 4]
    assert [point[:2] for point in found.data["curve"]] == [[2, 1.0], [3, 1.0], [4, 1.0], [5, share], [6, 0.0]]
    assert all(low <= value <= high for _, value, low, high, _ in found.data["curve"])
    assert [point[4] for point in found.data["curve"]] == [10] * 5
    assert found.figures == {"accuracy": (30 + 10 * share) / 50, "within": 1.0, "beyond": share / 2}
    assert told[-1] == {"step": 50, "total": 50}
    assert "longest trained" in found.html
    assert "10 exercises of each length" in found.html


def test_no_more_exercises_are_asked_than_allowed(measured):
    made, speaker = measured(corpus(), says)
    found = LengthGeneralisation(exercises=10).measure(made, lambda told: None)
    assert sum(map(len, speaker.calls)) == 10
    assert [point[4] for point in found.data["curve"]] == [2] * 5


def test_lengths_of_training_alone_have_no_figure_beyond_them(measured):
    made, _ = measured(corpus(validation_lengths=[2, 3]), says)
    found = LengthGeneralisation().measure(made, lambda told: None)
    assert found.figures == {"accuracy": 1.0, "within": 1.0}


def test_an_answer_ends_where_the_longest_right_one_of_its_length_does(measured):
    made, speaker = measured(corpus(), says)
    LengthGeneralisation().measure(made, lambda told: None)
    longest = {}
    for dialogue in corpus().dialogues("validation"):
        length, taken = dialogue.details["length"], len(dialogue.completion) + 1  # its bytes and the end
        longest[length] = max(taken, longest.get(length, 0))
    asked = {
        exercises("addition").length(texts[0]): most for texts, most in zip(speaker.calls, speaker.most, strict=True)
    }
    assert asked == longest


def test_what_has_no_room_or_no_length_is_refused(measured):
    made, _ = measured(corpus(), says, max_length=100)
    message = r"exercises of length 3 take \d+ tokens with their answers, but the model's max_length is 100"
    with pytest.raises(CapabilityError, match=message):
        LengthGeneralisation().measure(made, lambda told: None)
    made, _ = measured(Reviews(), says)
    with pytest.raises(CapabilityError, match="has texts and no dialogues"):
        LengthGeneralisation().measure(made, lambda told: None)
    with pytest.raises(ValueError, match="exercises is 0"):
        LengthGeneralisation(exercises=0)
