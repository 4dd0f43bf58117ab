"""Task `answers`: what it says of models whose answers have known laws."""

from __future__ import annotations

import math
from types import SimpleNamespace

import bakeoff
import pytest
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate import Measured
from bakeoff.interfaces.dialogue import Dialogue, Turn
from bakeoff.train import fit
from bakeoff_align.inference import Answers
from bakeoff_align.inference.answers import opened
from bakeoff_align.inference.questions import Questions
from bakeoff_align.inference.spread import spreads

D, N = 200, 4
#: What follows "yes" and "no", and how likely: answers of two words, or of three.
AFTER = {"yes": {"end": 1.0}, "no": {"so": 1.0}, "so": {"end": 1.0}}


def says(p):
    return {"?": {"yes": p, "no": 1 - p}, **AFTER}


@pytest.fixture
def asked(measured, judge, monkeypatch):
    """`asked(p, q)`: of a model that says yes with probability p, beside one that does with probability q."""

    def make(p, q=None, max_length=16):
        other = None if q is None else measured(says(q), D).model
        monkeypatch.setattr("bakeoff_align.inference.answers.opened", lambda folder, measured: other)
        arguments = {"reference": None if q is None else "a run", "samples": N, "dialogues": D, "max_new_tokens": 5}
        task = Answers(reward=judge(lambda text: 3.0 * text.startswith("yes")), **arguments)
        return task.measure(measured(says(p), D, max_length), lambda told: None)

    return make


def test_means_follow_the_law(asked):
    answer = asked(0.7, 0.4)
    yes = answer.figures["reward"] / 3
    assert abs(yes - 0.7) < 3 * math.sqrt(0.7 * 0.3 / (D * N))
    assert answer.figures["length"] == pytest.approx(2 * yes + 3 * (1 - yes))
    # only the first word is ever in doubt, so the sums are the same for every answer
    assert answer.figures["kl"] == pytest.approx(0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6), rel=1e-6)
    entropy = -0.7 * math.log(0.7) - 0.3 * math.log(0.3)
    assert answer.figures["entropy"] == pytest.approx(entropy / answer.figures["length"], rel=1e-6)


def test_what_is_never_said_is_at_no_distance(asked):
    assert asked(1.0, 0.7).figures["kl"] == pytest.approx(math.log(1 / 0.7), rel=1e-6)


def test_without_a_reference_there_is_no_distance(asked):
    assert set(asked(0.7).figures) == {"reward", "entropy", "length"}


def test_answers_are_shown(asked):
    html = asked(1.0).html
    assert "200 dialogues of a validation split, 4 answers to each" in html
    assert html.count("yes") == 8


def test_a_distance_is_the_kl_of_whole_answers(measured, judge):
    p = {"?": {"yes": 0.5, "no": 0.5}, "yes": {"yes": 0.3, "end": 0.7}, "no": {"end": 1.0}}
    q = {"?": {"yes": 0.8, "no": 0.2}, "yes": {"yes": 0.6, "end": 0.4}, "no": {"end": 1.0}}
    task, given = Answers(reward=judge(len), samples=N, dialogues=D, max_new_tokens=12), measured(p, D)
    samples = task.drawn(Questions(given, D, "answers"), lambda told: None)
    found = {}
    text_size = given.data.tokenizer.text_size
    for part in spreads(given.model, measured(q, D).model, samples, text_size=text_size, tokens=64):
        found |= part
    kl = [found[n].kl for n in range(len(samples))]
    # a yes is followed by Geometric(0.7) - 1 more of them: E = 0.5 * (1 / 0.7) times in doubt
    doubt = 0.3 * math.log(0.3 / 0.6) + 0.7 * math.log(0.7 / 0.4)
    first = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    deviation = doubt * math.sqrt(0.5 * (2 - 0.7) / 0.7**2 - (0.5 / 0.7) ** 2)
    assert abs(sum(kl) / len(kl) - first - 0.5 / 0.7 * doubt) < 3 * deviation / math.sqrt(len(kl))
    assert min(kl) >= 0


def test_other_questions_may_be_asked(measured, judge):
    """As where a run trains on prompts that were chosen by what was answered."""
    given = measured(says(0.5) | {"!": {"no": 1.0}}, D)
    corpus = SimpleNamespace(dialogues=lambda split: iter([Dialogue(prompt=(Turn("user", "!"),))] * 3))
    task = Answers(reward=judge(lambda text: float(text == "no")), corpus=corpus, dialogues=5, max_new_tokens=1)
    answer = task.measure(given, lambda told: None)
    assert answer.figures["reward"] == 1
    assert "3 dialogues of a validation split" in answer.html


def test_nothing_may_have_been_asked(measured, judge):
    corpus = SimpleNamespace(dialogues=lambda split: iter([Dialogue(prompt=())]))
    task = Answers(reward=judge(len), corpus=corpus, samples=1, max_new_tokens=1)
    assert "1 dialogues" in task.measure(measured(says(0.5), 1), lambda told: None).html


def test_no_room(asked):
    with pytest.raises(CapabilityError, match=r"answers: the prompt of dialogue 0 has 1 tokens, but the model's"):
        asked(0.7, max_length=1)


@pytest.mark.parametrize("name", ["samples", "dialogues", "max_new_tokens"])
def test_counts(judge, name):
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        Answers(reward=judge(len), **{name: 0})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of two runs that sort, one of which has another tokenizer."""
    folder = tmp_path_factory.mktemp("answers")
    corpus = {"count": 20, "validation_count": 4, "lengths": [3, 3]}
    changes = {f"data.corpus.{name}": value for name, value in corpus.items()}
    changes |= {"trainer.max_steps": 1, "data.batch_tokens": 64, "validation.every_steps": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(folder / "cache"))
        for name, more in {"char": {}, "bpe": {"data.tokenizer": {"use": "bpe", "vocab_size": 270}}}.items():
            fit(bakeoff.recipe("bakeoff:align/base.yaml", changes | more), folder=folder / name, progress=False)
        yield folder


def test_a_run_is_at_no_distance_of_itself(runs):
    run = bakeoff.load_run(runs / "char")
    recipe = run.recipe.override({"validation.tokens": 64})
    exact = bakeoff.recipe("bakeoff:align/grpo.yaml", {"weights": None}).build("objective.reward")
    task = Answers(reward=exact, reference=str(runs / "char"), samples=3, dialogues=4, max_new_tokens=6)
    told = []
    answer = task.measure(Measured.of(run.model, run.data, recipe), told.append)
    assert answer.figures["kl"] == 0
    assert answer.figures["entropy"] > 0
    assert told[-1] == {"step": 24, "total": 24}


def test_another_tokenizer_is_refused(runs):
    run = bakeoff.load_run(runs / "char")
    measured = SimpleNamespace(data=run.data, device="cpu")
    message = r"the tokenizer of reference .*bpe has 269 ids and that of the measured run 259, and they are not"
    with pytest.raises(UserError, match=message):
        opened(str(runs / "bpe"), measured)
