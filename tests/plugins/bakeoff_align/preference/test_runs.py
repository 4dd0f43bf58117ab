"""Runs on preferences: what is kept, what is trained, and a run that is killed."""

import os
import signal

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.evaluate.planning import plan_recipe
from bakeoff.interfaces import Dialogue, Turn
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.registry import find
from bakeoff.train import fit
from bakeoff_align.templates import Plain


def test_a_killed_run_continues_exactly_against_the_same_reference(preferring, tmp_path, in_child, same_run):
    recipe = preferring("dpo")
    whole = fit(recipe, folder=tmp_path / "whole", progress=False)

    def call():
        from bakeoff.train import conductor

        save = conductor.Conductor._save

        def kill(self, trainer, at):
            save(self, trainer, at)
            if at == 4:
                os.kill(os.getpid(), signal.SIGKILL)

        conductor.Conductor._save = kill
        fit(recipe, folder=tmp_path / "killed", progress=False)

    assert in_child(call) == -signal.SIGKILL
    same_run(whole, fit(recipe, folder=tmp_path / "killed", progress=False))
    assert (tmp_path / "whole" / "means.csv").read_bytes() == (tmp_path / "killed" / "means.csv").read_bytes()


def test_checkpoints_hold_the_reference_and_final_weights_do_not(preferring, tmp_path):
    run = fit(preferring("dpo"), folder=tmp_path / "run", progress=False)
    held = torch.load(tmp_path / "run" / "checkpoints" / "step-8.ckpt", weights_only=True)
    weights = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    inside = "objective.reference_model.frozen."
    frozen = {name.removeprefix(inside): t for name, t in held["state_dict"].items() if name.startswith(inside)}
    assert frozen.keys() == weights.keys()
    assert any(not torch.equal(frozen[name], weights[name]) for name in weights)
    trained = sum(len(group["params"]) for group in held["optimizer_states"][0]["param_groups"])
    assert trained == len(list(run.model.parameters()))


@pytest.mark.parametrize("use", ["dpo", "simpo"])
def test_a_run_begins_at_its_reference_and_learns_the_order(preferring, tmp_path, use):
    plain = {"model__blocks__layer__dropout": 0.0, "trainer__max_steps": 20, "checkpoint__every_steps": 20}
    run = fit(preferring(use, **plain), folder=tmp_path / "run", progress=False)
    first, last = ({row["name"]: row["value"] for row in run.means if row["step"] == step} for step in (1, 20))
    if use == "dpo":
        assert first["margin"] == pytest.approx(0, abs=1e-6)
    assert last["margin"] > first["margin"]
    assert {"accuracy", "chosen_reward", "rejected_reward", "validation.accuracy", "validation.loss"} <= last.keys()


@pytest.mark.parametrize("use", ["dpo", "ipo", "simpo", "orpo", "kto"])
def test_a_step_is_planned(preferring, use):
    planned = plan_recipe(preferring(use))
    assert planned.memory is not None, planned.notes
    copies = 2 if use in ("dpo", "ipo", "kto") else 1
    assert planned.memory.parameters == pytest.approx(copies * planned.memory.gradients, rel=0.01)


def test_an_odd_number_of_rows_is_refused(preferring, tmp_path):
    recipe = preferring("dpo", data__batch_tokens=48, data__micro_batch=3)
    with pytest.raises(UserError, match=r"3 rows, but DPO takes 2 rows a dialogue"):
        fit(recipe, folder=tmp_path / "run", progress=False)


def encoded(use, **given):
    dialogue = Dialogue(prompt=(Turn("user", "2+2"),), **given)
    return find(use, "objective")().encode(dialogue, Plain(), ByteTokenizer())


@pytest.mark.parametrize("use", ["dpo", "ipo", "simpo", "orpo"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"completion": "4"}, "its `rejected` is missing"),
        ({"rejected": "4"}, "its `completion` is missing"),
        ({"completion": "", "rejected": "4"}, "its `completion` is empty"),
        ({"completion": "4", "rejected": ""}, "its `rejected` is empty"),
        ({"completion": "4", "rejected": "4"}, "its `completion` and its `rejected` are the same, '4'"),
    ],
)
def test_half_and_equal_pairs_are_refused(use, given, said):
    with pytest.raises(UserError, match=said):
        encoded(use, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"right": 1.0}, "its `completion` is missing"),
        ({"completion": "", "right": 1.0}, "its `completion` is empty"),
        ({"completion": "4"}, "its `right` is missing; KTO learns from completions that are desirable"),
    ],
)
def test_completions_that_nobody_has_judged_are_refused(given, said):
    with pytest.raises(UserError, match=said):
        encoded("kto", **given)


def test_rows_are_the_chosen_completion_and_the_rejected_one():
    tokenizer = ByteTokenizer()
    rows = encoded("dpo", completion="4", rejected="five").rows
    said = [[token for token, weight in zip(*row[:2], strict=True) if weight > 0] for row in rows]
    assert [tokenizer.decode(tokens) for tokens in said] == ["4", "five"]
    assert [tokens[-1] for tokens in said] == [tokenizer.end] * 2
    assert rows[0].tokens[: -len(said[0])] == rows[1].tokens[: -len(said[1])]
