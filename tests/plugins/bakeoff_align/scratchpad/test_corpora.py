"""Corpora of exercises: what is in which split, and what is right, which is known exactly."""

import re
from itertools import islice

import pytest
from bakeoff.errors import UserError
from bakeoff.interfaces import Sample
from bakeoff.interfaces.dialogue import Turn
from bakeoff_align.rewards.exact_match import ExactMatch
from bakeoff_align.scratchpad.corpora import ScratchpadCorpus, ScratchpadGraded, ScratchpadPairs
from bakeoff_align.scratchpad.judging import judged
from bakeoff_align.scratchpad.known import EXERCISES

ALL = (ScratchpadCorpus, ScratchpadPairs, ScratchpadGraded)


def asked(corpus, split):
    return [dialogue.prompt[-1].text for dialogue in corpus.dialogues(split)]


def lengths(corpus, split):
    return [dialogue.details["length"] for dialogue in corpus.dialogues(split)]


def test_a_dialogue_holds_all_that_is_known():
    corpus = ScratchpadCorpus(task="addition", lengths=[2, 2], count=1)
    (dialogue,) = corpus.dialogues("train")
    a, b = re.fullmatch(r"(\d \d) \+ (\d \d)", dialogue.prompt[0].text).groups()
    total = int(a.replace(" ", "")) + int(b.replace(" ", ""))
    assert dialogue.prompt == (Turn("user", f"{a} + {b}"),)
    assert dialogue.answer == " ".join(str(total))
    assert dialogue.completion.startswith(f"<scratch>\n{a} + {b} ,  C: 0\n")
    assert dialogue.completion.endswith(f"\n</scratch>\n{dialogue.answer}")
    assert "".join(dialogue.steps) == dialogue.completion
    assert [step.count("\n") for step in dialogue.steps] == [1] * 6 + [0]
    assert dialogue.step_labels == (1.0,) * 7
    assert dialogue.right == 1.0
    assert dialogue.details == {"task": "addition", "form": "scratchpad", "length": 2}
    assert list(corpus.documents("train")) == [f"{a} + {b}\n{dialogue.completion}"]


def test_direct_answers_are_the_answer_alone():
    shown = ScratchpadCorpus(task="sorting", count=20)
    direct = ScratchpadCorpus(task="sorting", form="direct", count=20)
    for one, other in zip(shown.dialogues("train"), direct.dialogues("train"), strict=True):
        assert (one.prompt, one.answer) == (other.prompt, other.answer)
        assert other.completion == other.answer
        assert other.steps == (other.answer,)


@pytest.mark.parametrize("name", EXERCISES)
def test_no_exercise_is_in_both_splits(name):
    corpus = ScratchpadCorpus(task=name, count=2000, validation_count=120)
    train, held = asked(corpus, "train"), asked(corpus, "validation")
    assert len(train) == 2000
    assert len(set(held)) == len(held) == 120
    assert not set(train) & set(held)
    assert set(lengths(corpus, "train")) == set(lengths(corpus, "validation"))


def test_of_few_exercises_those_that_are_held_out_are_never_trained():
    """Of 100 sums of two digits, 40 are held out: the other 60 are all that training draws, in 2000 draws each."""
    corpus = ScratchpadCorpus(task="addition", lengths=[1, 1], count=2000, validation_count=40)
    every = {f"{a} + {b}" for a in range(10) for b in range(10)}
    assert set(asked(corpus, "train")) == every - set(asked(corpus, "validation"))


def test_longer_exercises_are_held_out_where_that_is_asked_for():
    corpus = ScratchpadCorpus(task="addition", validation_lengths=[9, 12], count=400, validation_count=100)
    assert set(lengths(corpus, "train")) == set(range(1, 9))
    held = lengths(corpus, "validation")
    assert [held.count(length) for length in range(9, 13)] == [25] * 4
    assert all(text.count(" ") == 2 * n for text, n in zip(asked(corpus, "validation"), held, strict=True))


def test_too_few_exercises_are_refused_with_both_numbers():
    message = r"'parity' has 4 different exercises of length 2; validation_count 6 over lengths 2 to 3 takes 3, and"
    with pytest.raises(UserError, match=message):
        list(ScratchpadCorpus(task="parity", lengths=[2, 3], validation_count=6).dialogues("train"))
    # of another length than those of training, all may be held out
    corpus = ScratchpadCorpus(task="parity", lengths=[5, 6], validation_lengths=[2, 2], validation_count=4)
    assert set(asked(corpus, "validation")) == {"0 0", "0 1", "1 0", "1 1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "sum"}, "task is 'sum'"),
        ({"task": "addition", "form": "scratch"}, "did you mean 'scratchpad'"),
        ({"task": "addition", "count": 0}, "count is 0"),
        ({"task": "addition", "validation_count": 0}, "validation_count is 0"),
        ({"task": "addition", "lengths": [3, 2]}, r"lengths is \[3, 2\]"),
        ({"task": "addition", "validation_lengths": [0, 2]}, r"validation_lengths is \[0, 2\]"),
        ({"task": "addition", "lengths": [1, 2, 3]}, "lengths is"),
    ],
)
def test_slips_in_the_arguments_are_told(arguments, message):
    with pytest.raises(UserError, match=message):
        ScratchpadCorpus(**arguments)
    with pytest.raises(UserError, match="no split is called 'test'"):
        ScratchpadCorpus(task="addition").dialogues("test")
    with pytest.raises(UserError, match="wrong is 2"):
        ScratchpadGraded(task="addition", wrong=2)


@pytest.mark.parametrize("cls", ALL)
def test_all_arguments_are_in_the_fingerprint_and_change_the_texts(cls):
    base = {"task": "addition", "lengths": [2, 4], "count": 50, "validation_count": 10}
    changes = [{}, {"task": "multiplication"}, {"form": "direct"}, {"count": 51}, {"lengths": [2, 5]}, {"seed": 1}]
    changes += [{"validation_count": 12}, {"validation_lengths": [5, 6]}]
    made = [cls(**base, **{}) if not change else cls(**{**base, **change}) for change in changes]
    made += [ScratchpadGraded(**base, wrong=0.1)] if cls is ScratchpadGraded else []
    texts = {tuple(c.documents("train")) + tuple(c.documents("validation")) for c in made}
    assert len({corpus.fingerprint() for corpus in made}) == len(made) == len(texts)


def test_pairs_hold_the_same_exercises_and_a_wrong_answer_with_its_exact_margin():
    plain, pairs = (cls(task="addition", count=300) for cls in (ScratchpadCorpus, ScratchpadPairs))
    for one, other in zip(plain.dialogues("train"), pairs.dialogues("train"), strict=True):
        assert (one.prompt, one.completion, one.answer) == (other.prompt, other.completion, other.answer)
        right, wrong = other.completion.split("\n"), other.rejected.split("\n")
        assert other.margin == pytest.approx(sum(a != b for a, b in zip(right, wrong, strict=True)) / len(right))
        found = ExactMatch().score([Sample(other, text, [], []) for text in (other.completion, other.rejected)])
        assert found == [1.0, 0.0]


def test_graded_answers_are_judged_step_by_step():
    corpus = ScratchpadGraded(task="sorting", wrong=0.3, count=2000)
    dialogues = list(corpus.dialogues("train"))
    wrong = [dialogue for dialogue in dialogues if dialogue.right == 0]
    assert {dialogue.right for dialogue in dialogues} == {0.0, 1.0}
    assert len(wrong) == pytest.approx(600, abs=3 * (2000 * 0.3 * 0.7) ** 0.5)  # three standard deviations
    score = ExactMatch().score([Sample(dialogue, dialogue.completion, [], []) for dialogue in dialogues])
    assert score == [dialogue.right for dialogue in dialogues]
    for dialogue in dialogues:
        assert len(dialogue.steps) == len(dialogue.step_labels)
        assert "".join(dialogue.steps) == dialogue.completion
        assert all(dialogue.step_labels) == (dialogue.right == 1)
        assert judged(dialogue, dialogue.completion) == dialogue.step_labels


def test_the_estimate_of_the_size_is_near():
    corpus = ScratchpadCorpus(task="addition", count=500)
    held = sum(len(text) for split in ("train", "validation") for text in corpus.documents(split))
    assert corpus.size() == pytest.approx(held, rel=0.2)


def test_exercises_come_in_a_fixed_order_however_far_they_are_read():
    corpus = ScratchpadPairs(task="program", count=100)
    assert list(islice(corpus.dialogues("train"), 5)) == list(corpus.dialogues("train"))[:5]
