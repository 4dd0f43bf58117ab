"""Answers of runs, judged whole and step by step: labels by hand, by known chances, and through training."""

import logging
import math
from dataclasses import replace
from functools import partial

import bakeoff.testing
import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Corpus, Dialogue, Reward, Sample, Turn
from bakeoff.parts.samplers import Greedy
from bakeoff.parts.samplers import Sample as Drawing
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.parts.vocabulary import Vocabulary
from bakeoff.testing.host import model
from bakeoff.train import fit, import_weights, load_run
from bakeoff_align.corpora.monte_carlo_steps import MonteCarloSteps
from bakeoff_align.corpora.sampled_answers import SampledAnswers
from bakeoff_align.corpora.sampled_pairs import SampledPairs
from bakeoff_align.rewards.exact_match import ExactMatch
from bakeoff_align.rewards.length_reward import LengthReward
from bakeoff_align.rewards.process_reward import ProcessReward
from bakeoff_align.rewards.verifier import Verifier
from bakeoff_align.rollouts import AnsweringRun, monte_carlo_labels
from bakeoff_align.templates import Plain

from .known_preferences import preferring

SUMS = {"use": "scratchpad", "task": "parity", "count": 24, "validation_count": 8, "lengths": [4, 5]}
QUESTION = Dialogue(prompt=(Turn("user", "?"),), answer="a")


def test_labels_are_shares_of_rollouts_that_end_right():
    ends = {"1": "aaab", "12": "abbb"}  # what the four rollouts from behind "1", and from behind "12", add
    asked = []

    def carry_on(dialogues, texts, copies):
        assert all(dialogue is QUESTION for dialogue in dialogues)
        asked.append((list(texts), copies))
        return [Sample(QUESTION, text + ends[text][n], [], []) for text in texts for n in range(copies)]

    def judge(samples):
        return [float(sample.text.endswith("a")) for sample in samples]

    answers = [Sample(QUESTION, text, [], []) for text in ("12a", "b", "1b")]
    steps = [["1", "2", "a"], ["b"], ["1", "b"]]
    found = monte_carlo_labels(answers, steps, carry_on=carry_on, judge=judge, rollouts=4)
    assert found == [(0.75, 0.25, 1.0), (0.0,), (0.75, 0.0)]
    assert asked == [(["1", "12", "1"], 4)]  # nothing is carried on behind a last step


class EndsInA(Reward):
    def score(self, samples):
        return [float(sample.text.endswith("a")) for sample in samples]


def saying(letters, **options):
    """Answers of a model that says each of the letters with the same chance, whatever was said."""
    network = model("head", partial(Vocabulary, bias=True), vocab_size=259).initialise(0)
    with torch.no_grad():
        network.head.projection.weight.zero_()
        network.head.projection.bias.fill_(-100.0)
        network.head.projection.bias[list(letters.encode())] = 0.0
    run = AnsweringRun("none", **{"sampler": Drawing(), "max_new_tokens": 3, "seed": 0, "device": "cpu", **options})
    run.__dict__["_opened"] = (network, ByteTokenizer(), Plain(separator=""))
    return run


class Asks(Corpus):
    """The same question again and again."""

    licence = "none"

    def __init__(self, number):
        self.number = number

    def documents(self, split):
        return iter(["?"] * self.number)

    def fingerprint(self):
        return f"asks {self.number}"

    def dialogues(self, split):
        return iter([QUESTION] * self.number)


def drawn_from(cls, run, number, reward, **options):
    corpus = cls(corpus=Asks(number), run="none", reward=reward, **options)
    corpus.answering = run
    return corpus


def test_steps_of_a_known_model_are_as_right_as_chance_says():
    corpus = drawn_from(MonteCarloSteps, saying("a\n"), 70, EndsInA(), rollouts=16, answers=2)
    found = list(corpus.dialogues("train"))
    assert len(found) == 140  # of two batches of questions
    assert len({dialogue.completion for dialogue in found}) == 8  # all that three letters can be
    inner = []
    for dialogue in found:
        assert "".join(dialogue.steps) == dialogue.completion
        assert len(dialogue.steps) == len(dialogue.step_labels)
        assert dialogue.step_labels[-1] == dialogue.right == float(dialogue.completion.endswith("a"))
        inner += dialogue.step_labels[:-1]
    # whatever stands there, three more letters end in an "a" with probability 1/2
    assert abs(sum(inner) / len(inner) - 0.5) < 3 * math.sqrt(0.25 / (16 * len(inner)))
    assert len(set(inner)) > 4


def test_sampled_answers_are_as_right_as_the_reward_says():
    known = replace(QUESTION, completion="gold", rejected="no", steps=("gold",), step_labels=(1.0,))
    corpus = drawn_from(SampledAnswers, saying("ab", max_new_tokens=1), 0, ExactMatch(), answers=100)
    found = list(corpus.judged([known], corpus.answering.answers([known], 100, "x"), "x"))
    for dialogue in found:
        plain = Dialogue(prompt=known.prompt, completion=dialogue.completion, right=dialogue.right, answer="a")
        assert dialogue == plain
        assert dialogue.right == float(dialogue.completion == "a")
    right = sum(dialogue.right for dialogue in found)
    assert abs(right - 50) < 3 * math.sqrt(25)


def test_pairs_are_of_a_better_and_a_worse_answer(caplog):
    known = [replace(QUESTION, answer=answer) for answer in ("a", "b", "z")]
    corpus = drawn_from(SampledPairs, saying("ab", max_new_tokens=1), 0, ExactMatch(), answers=16)
    with caplog.at_level(logging.INFO):
        found = list(corpus.judged(known, corpus.answering.answers(known, 16, "x"), "x"))
    assert [(pair.completion, pair.rejected, pair.margin) for pair in found] == [("a", "b", 1.0), ("b", "a", 1.0)]
    assert "x: 1 of 3 questions have answers that are all worth the same" in caplog.text  # nobody says "z"


def test_a_pair_takes_two_answers():
    with pytest.raises(UserError, match="answers is 1; a pair takes at least 2"):
        drawn_from(SampledPairs, saying("ab"), 0, ExactMatch(), answers=1)


def test_answers_without_a_text_are_told_of(caplog):
    corpus = drawn_from(MonteCarloSteps, saying("a"), 3, EndsInA(), rollouts=1)
    network, tokenizer, _ = corpus.answering._opened
    with torch.no_grad():
        network.head.projection.bias[tokenizer.end] = 100.0  # nothing is said at all
    with caplog.at_level(logging.WARNING):
        assert list(corpus.dialogues("train")) == []
    assert "3 of 3 answers have no text, and so no steps: they are left out" in caplog.text


def test_the_same_answers_again_and_others_for_another_purpose():
    run = saying("abcd")
    told = [[sample.text for sample in run.answers([QUESTION] * 3, 2, purpose)] for purpose in ("one", "one", "two")]
    assert told[0] == told[1] != told[2]
    greedy = saying("abcd", sampler=Greedy())
    assert [sample.text for sample in greedy.answers([QUESTION], 2, "one")] == ["aaa", "aaa"]


def test_what_decides_is_in_the_fingerprint():
    prints = {
        drawn_from(cls, run, 1, reward, **options).fingerprint()
        for cls, run, reward, options in [
            (SampledAnswers, saying("ab"), EndsInA(), {}),
            (MonteCarloSteps, saying("ab"), EndsInA(), {}),
            (SampledAnswers, saying("ac"), EndsInA(), {}),
            (SampledAnswers, saying("ab", seed=1), EndsInA(), {}),
            (SampledAnswers, saying("ab", sampler=Drawing(temperature=0.5)), EndsInA(), {}),
            (SampledAnswers, saying("ab"), ExactMatch(), {}),
            (SampledAnswers, saying("ab"), ExactMatch(ignore_case=True), {}),
            (SampledAnswers, saying("ab"), EndsInA(), {"answers": 9}),
            (MonteCarloSteps, saying("ab"), EndsInA(), {"rollouts": 9}),
            (MonteCarloSteps, saying("ab"), EndsInA(), {"separator": "."}),
        ]
    }
    assert len(prints) == 10
    assert drawn_from(SampledAnswers, saying("ab"), 1, EndsInA()).fingerprint() in prints


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: drawn_from(SampledAnswers, None, 1, EndsInA(), answers=0), "answers is 0"),
        (lambda: drawn_from(MonteCarloSteps, None, 1, EndsInA(), rollouts=0), "rollouts is 0"),
        (lambda: drawn_from(MonteCarloSteps, None, 1, EndsInA(), separator=""), "separator is empty"),
        (
            lambda: list(drawn_from(SampledAnswers, saying("ab"), 1, LengthReward(target=0)).dialogues("train")),
            "reward LengthReward is -0.03 for the answer '...'; how right an answer is lies from 0 to 1",
        ),
    ],
)
def test_slips_are_named(make, reason):
    with pytest.raises(UserError, match=reason):
        make()


@pytest.mark.parametrize("name", ["sampled_answers", "sampled_pairs", "monte_carlo_steps"])
def test_laws(runs, name):
    more = {
        "sampled_answers": {},
        "sampled_pairs": {"reward": {"use": "format_reward", "markers": ["e"]}},  # some have one
        "monte_carlo_steps": {"rollouts": 2},
    }[name]
    told = {
        "corpus": SUMS,
        "run": runs("plain"),
        "reward": {"use": "exact_match"},
        "max_new_tokens": 6,
        "device": "cpu",
    }
    bakeoff.testing.check(name, arguments={**told, **more}).raise_for_failures()


@pytest.mark.parametrize(
    ("corpus", "objective", "reward"),
    [
        ({"use": "sampled_answers", "answers": 2}, {"use": "verifying"}, Verifier),
        ({"use": "monte_carlo_steps", "rollouts": 2, "separator": "e"}, {"use": "process"}, ProcessReward),
    ],
)
def test_from_a_run_to_what_judges_its_answers(runs, tmp_path, corpus, objective, reward):
    asked = {"corpus": SUMS, "run": runs("plain"), "reward": {"use": "exact_match"}, "max_new_tokens": 20}
    begun = {"use": "added_parts", "drawn": ["head.readout.*"], "moved": {"head": "head.inner"}}
    changes = {"data__corpus": {**corpus, **asked, "device": "cpu"}, "objective": objective}
    changes["validation"] = {"tokens": 512}
    made = import_weights(preferring(**changes, converter=begun), runs("plain"), tmp_path / "begun")
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        before, after = (run.model.logits(tokens)[0] for run in (load_run(runs("plain")), made))
    assert torch.equal(before, after)
    run = fit(preferring(**changes, weights=str(made.folder)), folder=tmp_path / "judge", progress=False)
    told = {row["name"] for row in run.means}
    assert {"accuracy", "probability", "right", "validation.accuracy", "validation.loss"} <= told
    (value,) = reward(run=str(tmp_path / "judge"), device="cpu").score([Sample(QUESTION, "even", [], [])])
    assert 0 < value < 1
