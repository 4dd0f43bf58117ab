"""Runs of objectives that read dialogues, and of those that collect what the model says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import bakeoff
import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.evaluate import Measured
from bakeoff.evaluate.measures import throughput
from bakeoff.evaluate.planning import plan_recipe
from bakeoff.interfaces import Turn
from bakeoff.recipe.reading import as_yaml
from bakeoff.train import fit, load_run

SCRIPT = str(Path(__file__).with_name("answering.py"))


@pytest.fixture
def answering(values):
    """The tiny recipe on sums, under one of the script's objectives."""

    def make(use, **overrides):
        data = {"corpus": {"use": "toy_sums"}, "template": {"use": "toy_template"}, "tokenizer": {"use": "byte"}}
        values["data"] = {**data, "length": 16, "batch_tokens": 64, "micro_batch": 2}
        values.update({"imports": [SCRIPT], "objective": {"use": use}, "sampler": {"use": "sample"}})
        values["validation"] = {"every_steps": 4, "tokens": None}
        return bakeoff.recipe(values, {path.replace("__", "."): value for path, value in overrides.items()})

    return make


def stopped_at(recipe, folder, step, in_child):
    """The run, ended by a kill right after a step's checkpoint."""

    def call():
        from bakeoff.train import conductor

        save = conductor.Conductor._save

        def kill(self, trainer, at):
            save(self, trainer, at)
            if at == step:
                os.kill(os.getpid(), signal.SIGKILL)

        conductor.Conductor._save = kill
        fit(recipe, folder=folder, progress=False)

    assert in_child(call) == -signal.SIGKILL


def test_rows_hold_whole_dialogues_padded_to_the_longest(answering, tmp_path):
    recipe = answering("toy_answers")
    data, objective = recipe.build("data").prepare(progress=False), recipe.build("objective")
    reading = data.reading(objective)
    store = reading.store("train")
    assert len(store) == 64 - 8
    assert store.dialogue(0).answer == "0"
    seen = []
    for batch, _ in zip(reading.training(seed=1), range(28), strict=False):
        assert batch["tokens"].shape == (2, 8)
        assert batch["documents"] is None
        for tokens, weights, real in zip(batch["tokens"], batch["weights"], batch["real"], strict=True):
            text = data.tokenizer.decode(tokens[real].tolist())
            said = data.tokenizer.decode(tokens[weights > 0].tolist())
            left, right = text.split("=")
            assert right == said == str(sum(map(int, left.split("+"))))
            assert int(weights.sum()) == len(said) + 1
            assert tokens[real][-1] == data.tokenizer.end
            seen.append(text)
        assert batch["size"].tolist() == [1.0, 1.0]
    assert len(seen) == len(set(seen)) == 56  # an epoch sees each once
    held = [text for batch in reading.validation() for text in batch["tokens"][:, 0].tolist()]
    assert len(held) == 8
    again = recipe.build("data").prepare(progress=False).reading(objective)
    assert again.folder == reading.folder


def test_ranks_share_out_the_same_dialogues(answering):
    recipe = answering("toy_answers")
    data, objective = recipe.build("data").prepare(progress=False), recipe.build("objective")

    def rows(ranks, rank):
        loader = data.reading(objective).training(seed=1, ranks=ranks, rank=rank, first_step=2)
        return [
            row for batch, _ in zip(loader, range(4 // ranks), strict=False) for row in batch["tokens"][:, :5].tolist()
        ]

    assert sorted(rows(1, 0)) == sorted(rows(2, 0) + rows(2, 1))


#: Its collections last four steps, and it steers what KL costs after each.
PPO = {"use": "ppo", "reward": {"use": "exact_match"}, "max_new_tokens": 4, "passes": 2, "updates": 2, "target_kl": 0.1}


@pytest.mark.parametrize(
    ("objective", "step", "changes"),
    [
        ("toy_answers", 2, {}),
        ("toy_policy", 2, {}),
        ("toy_policy", 4, {}),
        ("ppo", 2, {"objective": PPO}),
        ("ppo", 4, {"objective": PPO}),
    ],
)
def test_a_killed_run_continues_exactly(answering, tmp_path, in_child, same_run, objective, step, changes):
    recipe = answering(objective, **changes)
    whole = fit(recipe, folder=tmp_path / "whole", progress=False)
    stopped_at(recipe, tmp_path / "killed", step, in_child)
    same_run(whole, fit(recipe, folder=tmp_path / "killed", progress=False))
    assert (tmp_path / "whole" / "means.csv").read_bytes() == (tmp_path / "killed" / "means.csv").read_bytes()
    assert load_run(tmp_path / "killed", trust=True).means == whole.means


def test_a_collection_lasts_its_passes_and_updates(answering, tmp_path):
    run = fit(answering("toy_policy"), folder=tmp_path / "run", progress=False)
    numbers = [row["value"] for row in run.means if row["name"] == "number"]
    assert numbers == [1.0] * 4 + [2.0] * 4  # 2 passes of 2 steps each
    held = torch.load(tmp_path / "run" / "checkpoints" / "step-8.ckpt", weights_only=True)
    assert held["state_dict"]["objective.collections"] == 2
    assert held["state_dict"]["objective.scale"] != 0.5  # what the objective made is trained
    assert len(held["collection"]["held"]["tokens"]) == 8
    told = {row["name"] for row in run.means}
    assert told == {"loss", "rows", "number"}
    assert run.metrics["bits_per_byte"] > 0  # of the completions that are held out


def test_validation_tells_the_means_of_the_split(answering, tmp_path):
    run = fit(answering("toy_answers"), folder=tmp_path / "run", progress=False)
    at_end = {row["name"]: row["value"] for row in run.means if row["step"] == 8}
    assert at_end["validation.rows"] == 2.0
    assert at_end["validation.loss"] == pytest.approx(run.metrics["nats_per_token"], rel=1e-6)


def test_a_run_answers_under_its_template(answering, tmp_path, capsys):
    run = fit(answering("toy_answers", trainer__max_steps=60), folder=tmp_path / "run", progress=False)
    asked = ["1+1=", "2+3="]
    ids = [run.tokenizer.encode(text) for text in asked]
    options = {"max_new_tokens": 2, "seed": 3}
    assert run.answer(asked, **options) == run.generate(ids, **options)
    assert run.answer([[Turn("user", "1+1=")]], **options) == run.answer(asked[:1], **options)
    words = ["generate", str(run.folder), "--trust", "--ask", "1+1=", "--max-new-tokens", "2", "--seed", "3"]
    assert main(words) == 0
    assert capsys.readouterr().out == "1+1=\n" + run.answer(asked[:1], **options)[0] + "\n"
    assert main([*words, "--prompt", "x"]) == 2
    assert "--ask and --prompt" in capsys.readouterr().err
    plain = load_run(fit(answering("toy_answers"), folder=tmp_path / "other", progress=False).folder, trust=True)
    plain.recipe = plain.recipe.override({"data.template": None})
    with pytest.raises(UserError, match=r"was trained without data\.template"):
        plain.answer(asked)


def test_speed_is_measured_with_what_is_collected(answering, tmp_path):
    run = fit(answering("toy_policy"), folder=tmp_path / "run", progress=False)
    assert throughput(Measured.of(run.model, run.data, run.recipe))["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"data__template": None}, r"reads dialogues, and data\.template does not say.*use: chat"),
        ({"data__length": 5, "data__batch_tokens": 20}, r"dialogue 27 of the train split has 7 tokens.*a row holds 6"),
        ({"data__corpus": {"use": "toy_sums", "empty": "train"}}, r"train split"),
        ({"data__corpus": {"use": "reviews", "texts": 8}}, r"Reviews has texts and no dialogues"),
        ({"trainer__stateful": True}, r"toy_answers takes no state"),
    ],
)
def test_what_cannot_be_read_is_told(answering, tmp_path, overrides, told):
    with pytest.raises(UserError, match=told):
        fit(answering("toy_answers", **overrides), folder=tmp_path / "run", progress=False)


def test_dialogues_that_are_too_long_are_left_out_and_counted(answering, caplog):
    recipe = answering("toy_answers", data__length=5, data__batch_tokens=20, data__leave_out_long=True)
    data = recipe.build("data").prepare(progress=False)
    store = data.reading(recipe.build("objective")).store("train")
    assert (store.left_out, len(store)) == (15, 49 - 8)  # sums of two digits have a token more, and 8 sums are 7
    assert "longer than a row of 6 tokens and left out" in caplog.text


@pytest.mark.parametrize("use", ["toy_answers", "toy_policy"])
def test_a_step_is_planned(answering, use):
    planned = plan_recipe(answering(use))
    assert planned.memory is not None, planned.notes
    assert planned.memory.activations > 0


def test_groups_must_fill_a_collection(answering, tmp_path):
    recipe = answering("toy_policy", objective={"use": "toy_policy", "group": 3})
    with pytest.raises(UserError, match=r"a collection has 8 rows.*no multiple of objective\.group 3"):
        fit(recipe, folder=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sampler", [{"use": "greedy"}, {"use": "sample", "temperature": 0.7}])
def test_a_sampler_that_an_objective_cannot_learn_from_is_refused_before_anything_begins(answering, sampler):
    exact = {"reward": {"use": "exact_match"}, "max_new_tokens": 4}
    changes = {"sampler": sampler, "objective": {"use": "ppo", **exact}}
    with pytest.raises(UserError, match="PPO learns from answers as the model itself gives them, but the sampler"):
        answering("ppo", **changes).demands()
    changes["objective"] = {"use": "expert_iteration", **exact, "group": 2}
    answering("expert_iteration", **changes).demands()


def test_prompts_leave_room_for_answers(answering, tmp_path):
    recipe = answering("toy_policy", data__length=6, data__batch_tokens=24)
    with pytest.raises(UserError, match=r"prompt of 4 tokens; with data.length 6 and objective.max_new_tokens 3.*7"):
        fit(recipe, folder=tmp_path / "run", progress=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("use", ["toy_answers", "toy_policy"])
def test_two_ranks_learn_what_one_does(answering, tmp_path, use):
    recipe = answering(use, model__blocks__layer__dropout=0.0, trainer__max_steps=4)
    alone = fit(recipe, folder=tmp_path / "alone", progress=False)
    path = tmp_path / "recipe.yaml"
    path.write_text(as_yaml(recipe.tree))
    words = [sys.executable, "-m", "bakeoff", "fit", str(path), "--folder", str(tmp_path / "two")]
    two = ["trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu"]
    done = subprocess.run(
        [*words, *two], capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    both = load_run(tmp_path / "two", trust=True)
    for name, value in alone.model.state_dict().items():
        torch.testing.assert_close(value, both.model.state_dict()[name], rtol=1e-3, atol=1e-5)
    numbers = [[row["value"] for row in run.means if row["name"] == "number"] for run in (alone, both)]
    assert numbers[0] == numbers[1]
