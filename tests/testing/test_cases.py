"""Pytest parameters from the registry, and arguments from the class."""

from __future__ import annotations

import bakeoff
import pytest
from bakeoff.testing import LawFailure, cases, check
from bakeoff.testing.build import built, context, resolved

from .stand_ins import Mean


def test_every_component_of_every_kind_with_laws_has_a_case():
    found = {parameter.values[0].name for parameter in cases()}
    files = {"huggingface_dataset", "jsonl", "conversations", "preferences", "pretrained_tokenizer"}
    runs = {"sampled_answers", "sampled_pairs", "monte_carlo_steps", "learned_reward", "process_reward", "verifier"}
    outside = files | runs | {"reasoning_gym_score"}  # they name no examples, as they need a file, a run or a corpus
    assert found == {entry.name for entry in bakeoff.names()} - outside


def test_slow_laws_are_marked():
    ids = {parameter.id: [mark.name for mark in parameter.marks] for parameter in cases("bakeoff", kind="mixer")}
    assert ids["mixer-attention-0"] == []
    assert ids["mixer-attention-0-slow"] == ["slow"]


def test_a_package_is_named_as_pip_names_it():
    assert [p.id for p in cases("Bakeoff", kind="executor")] == ["executor-local-0"]
    with pytest.raises(ValueError, match=r"package 'my-idea' registers no component; packages that do: .*bakeoff"):
        cases("my-idea")


def test_a_case_runs_the_laws_of_one_registered_component(monkeypatch):
    monkeypatch.setattr("bakeoff.registry._registered", {})

    @bakeoff.register("leaky_mean")
    class Leaky(Mean):
        def seen(self, x):
            return x.flip(1)

    (case,) = [p.values[0] for p in cases(kind="mixer") if p.id == "mixer-leaky_mean-0"]
    with pytest.raises(LawFailure, match="mixer leaky_mean breaks the law"):
        case.run()


def test_arguments_are_those_of_a_recipe():
    block = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 2}, "feed_forward": None}
    made = resolved({"layer": block})["layer"](context())
    assert type(made).__name__ == "PreNorm"
    assert made.mixer.n_heads == 2
    assert check("attention", arguments={"n_heads": 2}, laws=[1]).findings[0].arguments == {"n_heads": 2}
    assert built(Mean, {}).output.weight.shape == (16, 16)


def test_a_factory_needs_its_kind():
    def mean(place):
        return Mean(place)

    assert check(mean, kind="mixer").ok
    with pytest.raises(ValueError, match="give its kind"):
        check(mean)
