"""Rewards that ask a trained model, against that model asked row by row."""

import math
import shutil
from functools import cache

import bakeoff.testing
import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import Capabilities, Dialogue, Sample, Turn
from bakeoff.train import fit, load_run
from bakeoff_align.fingerprints import described
from bakeoff_align.rewards.learned_reward import LearnedReward
from bakeoff_align.rewards.process_reward import AGGREGATES, ProcessReward, aggregated
from bakeoff_align.rewards.verifier import Verifier

from . import known_preferences as known
from .known_preferences import preferring

DIALOGUE = Dialogue(prompt=(Turn("user", "Which?"), Turn("assistant", "this"), Turn("user", "or\nthat?")))
TEXTS = ["a", "", "ab\ncd\n", "1\n\n22\n333", "naïve 🤗\nno"]


def said(text, reason="end", dialogue=DIALOGUE):
    return Sample(dialogue, text, [], [], reason)


opened = cache(load_run)


def scores_of(folder, text, *, ended=True):
    """(n,) float64: the run's scores at each id of the answer, which is read alone and unpadded."""
    run = opened(folder)
    template = run.recipe.build("data.template")
    prompt = template.prompt(DIALOGUE.prompt, run.tokenizer)
    answer = [*run.tokenizer.encode(text), *([run.tokenizer.end] if ended else [])]
    with torch.no_grad():
        hidden = run.model.backbone(bakeoff.interfaces.Sequence(torch.tensor([prompt + answer]))).y
        weight, bias = run.model.head.readout.weight, run.model.head.readout.bias
        return (hidden[0, len(prompt) :] @ weight[0] + bias[0]).double()


@pytest.mark.parametrize("name", ["learned_reward", "process_reward", "verifier"])
@pytest.mark.parametrize("mixer", ["attention", "recurrent"])
def test_laws(runs, name, mixer):
    arguments = {"run": runs(mixer), "device": "cpu", "batch_tokens": 300}
    report = bakeoff.testing.check(name, arguments=arguments)
    report.raise_for_failures()
    assert "score" in [finding.law for finding in report.findings if finding.status == "passed"]


@pytest.mark.parametrize("mixer", ["attention", "recurrent"])
@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
def test_a_learned_reward_is_the_score_at_the_end(runs, mixer, batch_tokens):
    reward = LearnedReward(run=runs(mixer), device="cpu", batch_tokens=batch_tokens)
    wanted = [scores_of(runs(mixer), text)[-1].item() for text in TEXTS]
    assert reward.score([said(text) for text in TEXTS]) == pytest.approx(wanted, abs=1e-5)


def test_an_answer_that_was_cut_off_is_read_without_an_end(runs):
    reward = LearnedReward(run=runs("attention"), device="cpu")
    found = reward.score([said("ab", "length"), said("ab", "stop"), said("", "length")])
    wanted = [scores_of(runs("attention"), "ab", ended=False), scores_of(runs("attention"), "ab")]
    wanted += [scores_of(runs("attention"), "")]  # of what says nothing, there is the end alone
    assert found == pytest.approx([scores[-1].item() for scores in wanted], abs=1e-5)


@pytest.mark.parametrize("lacks", ["padding", "row_local"])
def test_rows_are_read_apart_where_a_model_must(runs, lacks, monkeypatch):
    reward = LearnedReward(run=runs("attention"), device="cpu")
    together = reward.score([said(text) for text in TEXTS])
    backbone = reward.judge._opened.model.backbone
    seen = []
    backbone.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    claims = Capabilities(**{"padding": True, lacks: False})
    monkeypatch.setattr(type(backbone), "capabilities", claims)
    assert reward.score([said(text) for text in TEXTS]) == pytest.approx(together, abs=1e-5)
    assert all(sequence.real is None for sequence in seen)


def test_steps_are_judged_at_their_last_tokens(runs):
    reward = ProcessReward(run=runs("recurrent"), device="cpu")
    found = reward.score_steps([said(text) for text in TEXTS])
    ends = [[0], [], [2, 5], [1, 2, 5, 8], [len("naïve 🤗\n".encode()) - 1, len("naïve 🤗\nno".encode()) - 1]]
    for text, steps, places in zip(TEXTS, found, ends, strict=True):
        assert steps == pytest.approx(scores_of(runs("recurrent"), text)[places].sigmoid().tolist(), abs=1e-5)
    for name in AGGREGATES:
        whole = ProcessReward(run=runs("recurrent"), device="cpu", aggregate=name).score([said(text) for text in TEXTS])
        plain = {"product": math.prod, "minimum": min, "last": lambda steps: steps[-1]}[name]
        assert whole == pytest.approx([plain(steps) if steps else 0.0 for steps in found], rel=1e-6)


def test_aggregates_by_hand():
    logs = torch.tensor([0.9, 0.9, 0.5], dtype=torch.float64).log()
    assert aggregated(logs, "product") == pytest.approx(0.405, abs=1e-12)
    assert aggregated(logs, "minimum") == pytest.approx(0.5, abs=1e-12)
    assert aggregated(logs.flip(0), "last") == pytest.approx(0.9, abs=1e-12)
    assert logs.sum().item() == pytest.approx(math.log(0.405), abs=1e-12)
    assert aggregated(torch.full((2000,), -1.0), "product") == 0  # too little for a number, and no NaN


def test_a_verifier_tells_the_probability_at_the_end_or_on_average(runs):
    scores = [scores_of(runs("attention"), text).sigmoid() for text in TEXTS]
    for over, plain in (("last", lambda p: p[-1]), ("mean", lambda p: p.mean())):
        found = Verifier(run=runs("attention"), device="cpu", over=over).score([said(text) for text in TEXTS])
        assert found == pytest.approx([plain(p).item() for p in scores], abs=1e-5)


def test_nothing_is_opened_before_it_is_asked(tmp_path):
    reward = LearnedReward(run=str(tmp_path / "none"))
    assert reward.score([]) == []
    with pytest.raises(UserError, match="there is no such folder"):
        reward.score([said("a")])


def test_an_answer_that_is_too_long_to_be_read(runs):
    with pytest.raises(UserError, match=r"reads at most 128 tokens, and an answer with its prompt has \d+"):
        LearnedReward(run=runs("attention"), device="cpu").score([said("a" * 128)])


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [("plain", CapabilityError, "Vocabulary .* scores nothing"), ("text", UserError, "has no data.template")],
)
def test_runs_that_cannot_judge(runs, name, kind, reason):
    with pytest.raises(kind, match=reason):
        LearnedReward(run=runs(name), device="cpu").score([said("a")])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: LearnedReward(run="x", batch_tokens=0), "batch_tokens is 0; it must be at least 1"),
        (lambda: ProcessReward(run="x", separator=""), "separator is empty"),
        (lambda: ProcessReward(run="x", aggregate="sum"), "aggregate is 'sum'; it is one of product, minimum, last"),
        (lambda: Verifier(run="x", over="all"), "over is 'all'; it is one of last, mean"),
    ],
)
def test_slips_are_named(make, reason):
    with pytest.raises(UserError, match=reason):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["attention", "recurrent"])
def test_a_reward_model_of_known_preferences_is_as_good_as_can_be(mixer, tmp_path):
    """Held-out pairs whose better text has the higher reward: of n, as many as of one who knows the model."""
    changes = {"data__corpus": {"use": "known_preferences", "pairs": 6000}, "data__length": 32}
    steps = {"data__batch_tokens": 8192, "trainer": {"max_steps": 150, "precision": "32-true"}}
    fit(preferring(mixer, **changes, **steps), folder=tmp_path / "run", progress=False)
    pairs = list(known.KnownPreferences(pairs=4000, seed=1).dialogues("validation"))
    reward = LearnedReward(run=str(tmp_path / "run"), device="cpu")
    chosen = reward.score([said(pair.completion, dialogue=pair) for pair in pairs])
    rejected = reward.score([said(pair.rejected, dialogue=pair) for pair in pairs])
    accuracy = sum(one > other for one, other in zip(chosen, rejected, strict=True)) / len(pairs)
    better = [known.probability(pair.completion, pair.rejected) for pair in pairs]
    bayes = sum(max(p, 1 - p) for p in better) / len(pairs)
    interval = 1.96 * math.sqrt(sum(p * (1 - p) for p in better)) / len(pairs)
    assert abs(accuracy - bayes) <= interval, f"{accuracy:.4f} of {len(pairs)}; {bayes:.4f} +- {interval:.4f}"


def test_a_judge_is_known_by_what_stands_in_its_folder_and_not_by_where_that_is(runs, tmp_path):
    """Else answers that an older judge liked would be taken from a cache."""
    prints = {}
    for name, folder in (("attention", "a"), ("attention", "b"), ("recurrent", "a")):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
        shutil.copytree(runs(name), tmp_path / folder)
        prints[name, folder] = described(Verifier(run=str(tmp_path / folder), device="cpu"))
    assert prints["attention", "a"] == prints["attention", "b"] != prints["recurrent", "a"]
