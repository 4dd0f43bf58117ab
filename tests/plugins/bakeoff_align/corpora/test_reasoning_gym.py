"""Questions and scores against the package itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from bakeoff.errors import MissingExtra, UserError
from bakeoff.interfaces import Dialogue, Sample, Turn
from bakeoff.parts.judging import scores
from bakeoff_align.corpora import gym
from bakeoff_align.corpora.reasoning_gym import ReasoningGym
from bakeoff_align.rewards.reasoning_gym_score import ReasoningGymScore

package = pytest.importorskip("reasoning_gym")

TASKS = ["chain_sum", "countdown", "time_intervals", "spiral_matrix"]


def told(dialogue: Dialogue) -> Dialogue:
    """As a store gives it back: details that went through JSON."""
    return replace(dialogue, details=json.loads(json.dumps(dialogue.details)))


def sample(dialogue: Dialogue, text: str) -> Sample:
    return Sample(told(dialogue), text, [], [])


@pytest.mark.parametrize("task", TASKS)
def test_questions_and_scores_are_those_of_the_package(task: str) -> None:
    theirs = package.create_dataset(task, size=12, seed=3)
    corpus = ReasoningGym(task=task, count=12, validation=0, seed=3)
    dialogues = list(corpus.dialogues("train"))
    assert [d.prompt for d in dialogues] == [(Turn("user", entry["question"]),) for entry in theirs]
    assert [d.answer for d in dialogues] == [entry["answer"] for entry in theirs]
    answers = [theirs[(number + number % 2) % 12]["answer"] for number in range(12)]  # every other one is another's
    expected = [theirs.score_answer(answer, entry) for answer, entry in zip(answers, theirs, strict=True)]
    given = [sample(dialogue, f" {answer}\n") for dialogue, answer in zip(dialogues, answers, strict=True)]
    assert scores(ReasoningGymScore(), given) == expected
    assert scores(ReasoningGymScore(), given[::-1])[::-1] == expected
    assert expected[0] == 1.0 > min(expected)


def test_settings_and_the_systems_turn() -> None:
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    corpus = ReasoningGym(task="chain_sum", count=5, config=config, system="Be brief.", validation=0, seed=1)
    theirs = package.create_dataset("chain_sum", size=5, seed=1, **config)
    found = list(corpus.dialogues("train"))
    assert [d.prompt for d in found] == [(Turn("system", "Be brief."), Turn("user", e["question"])) for e in theirs]
    assert scores(ReasoningGymScore(), [sample(d, d.answer) for d in found]) == [1.0] * 5
    assert corpus.fingerprint() != ReasoningGym(task="chain_sum", count=5, validation=0, seed=1).fingerprint()


def test_the_answer_may_stand_between_tags() -> None:
    (dialogue,) = ReasoningGym(task="gcd", count=1, validation=0).dialogues("train")
    texts = [f"<think>9</think> <answer> {dialogue.answer} </answer>", str(dialogue.answer)]
    given = [sample(dialogue, text) for text in texts]
    assert scores(ReasoningGymScore(tag="answer"), given) == [1.0, 0.0]
    assert scores(ReasoningGymScore(), given[1:]) == [1.0]
    assert ReasoningGymScore(tag="answer").answer_of("so <answer> 12 </answer>.") == "12"
    assert ReasoningGymScore(tag="answer").answer_of("12") == ""
    assert ReasoningGymScore().answer_of(" 12\n") == "12"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "chain_sums"}, r"no task is called 'chain_sums'; near: chain_sum"),
        ({"task": "word_ladder"}, "questions of 'word_ladder' are other ones in each process"),
        ({"task": "gcd", "count": 0}, "count is 0; it must be at least 1"),
        ({"task": "gcd", "config": {"sise": 3}}, r"the task 'gcd' refuses config \{'sise': 3\}: TypeError"),
        ({"task": "composite"}, "the task 'composite' refuses config {}"),
        ({"task": "gcd", "config": {"min_numbers": 1}}, r"the task 'gcd' refuses config \{'min_numbers': 1\}"),
        ({"task": "gcd", "config": {"size": 3}}, "config holds 'size'; write `count` beside config instead"),
    ],
)
def test_what_the_package_does_not_take_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ReasoningGym(**arguments)


def test_another_question_and_a_failing_scorer_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (dialogue,) = ReasoningGym(task="gcd", count=1, validation=0).dialogues("train")
    with pytest.raises(UserError, match="judges what the corpus 'reasoning_gym' asks"):
        scores(ReasoningGymScore(), [sample(replace(dialogue, details={}), "1")])
    with pytest.raises(UserError, match="question 0 of the task 'gcd' is not what reasoning-gym"):
        scores(ReasoningGymScore(), [sample(replace(dialogue, prompt=(Turn("user", "other"),)), "1")])
    made = gym.source("gcd", {}, 1, 0)
    monkeypatch.setattr(type(gym.dataset(made)), "score_answer", lambda *_: 1 / 0)
    with pytest.raises(UserError, match="reward ReasoningGymScore failed: ZeroDivisionError"):
        scores(ReasoningGymScore(), [sample(dialogue, "1")])


def test_a_missing_package_is_named_with_the_line_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym, "find_spec", lambda name: None)
    for make in (lambda: ReasoningGym(task="gcd"), ReasoningGymScore):
        with pytest.raises(MissingExtra, match=r"pip install 'bakeoff\[reason\]'"):
            make()


#: Questions of seed 0 of which one at least is another one in another process.
RARE = {
    "codeio": [182, 231, 280],
    "intermediate_integration": [63],
    "isomorphic_strings": [0, 7],
    "knight_swap": [7, 14],
    "list_functions": [0, 42, 45, 87, 147],
    "polynomial_multiplication": [0, 7, 14],
    "ransom_note": [0, 7],
    "word_ladder": [7, 21, 28],
}
DRAWN = """
import hashlib, json, sys
from reasoning_gym import create_dataset
found = {}
for name, numbers in json.loads(sys.argv[1]).items():
    dataset = create_dataset(name, size=500, seed=0)
    drawn = [dataset[number] for number in numbers]
    found[name] = hashlib.sha256(json.dumps([[e["question"], e["answer"]] for e in drawn]).encode()).hexdigest()
print("\\n" + json.dumps(found))  # some tasks print as well
"""


@pytest.mark.slow
def test_tasks_that_hang_on_more_than_their_seed_are_those_that_are_named() -> None:
    """Each task in two processes that hash otherwise, and have drawn other numbers."""
    from reasoning_gym.factory import DATASETS

    others = set(DATASETS) - gym.UNSTEADY - {"composite"}
    asked = json.dumps({**{name: [0] for name in sorted(others)}, **RARE})

    def drawn(seed: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.Popen(
            [sys.executable, "-c", DRAWN, asked], env=environment, stdout=subprocess.PIPE, text=True
        )

    running = [drawn(seed) for seed in ("1", "2")]
    one, other = (json.loads(process.communicate()[0].splitlines()[-1]) for process in running)
    assert {name for name in one if one[name] != other[name]} == gym.UNSTEADY
