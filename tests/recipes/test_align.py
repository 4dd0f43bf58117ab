"""The chain of recipes from text to answers to feedback, in small: each begins from the run that another made."""

import bakeoff
import pytest
from bakeoff.cli.main import main
from bakeoff.evaluate import Measured, asked
from bakeoff.recipe import comparison
from bakeoff.train import fit, import_weights, load_run

from . import published

FOLDER = published.MODELS.parent / "align"
CORPUS = {
    "use": "scratchpad",
    "task": "sorting",
    "form": "direct",
    "count": 40,
    "validation_count": 8,
    "lengths": [3, 3],
}
SHORT = {"trainer.max_steps": 2, "validation": {"every_steps": None, "tokens": 256}}


def small(name, **changes):
    """A recipe of the folder that trains two steps on few exercises, in rows few enough for that."""
    path = FOLDER / f"{name}.yaml"
    tree = bakeoff.recipe(path).tree
    corpus = (
        {"data.corpus.corpus": CORPUS} if tree["data"]["corpus"]["use"] == "sampled_pairs" else {"data.corpus": CORPUS}
    )
    rows = {"data.batch_tokens": 16 * tree["data"]["length"]}
    return bakeoff.recipe(path, {**corpus, **rows, **SHORT, **changes})


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A folder with the base model and the fine-tuned one, which sorts some of the time; the test stands in it."""
    folder = tmp_path_factory.mktemp("align")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("BAKEOFF_CACHE", str(folder / "cache"))
        fit(small("base", **{"trainer.max_steps": 60}), folder="runs/align/base", progress=False)
        fit(small("sft", **{"trainer.max_steps": 30}), folder="runs/align/sft", progress=False)
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "rloo", "ppo", "expert_iteration", "dpo"])
def test_policies_begin_from_the_fine_tuned_model(chain, name):
    run = fit(small(name), folder=f"runs/align/{name}", progress=False)
    told = {row["name"] for row in run.means}
    assert "loss" in told
    assert {"reward", "entropy", "length"} <= told or {"accuracy", "margin"} <= told
    assert run.metrics["step"] == 2


@pytest.mark.slow
def test_right_answers_of_its_own_are_fine_tuned_on(chain):
    run = fit(small("rejection_sampling"), folder="runs/align/rejection_sampling", progress=False)
    assert run.metrics["step"] == 2
    (answers,) = asked(comparison(FOLDER.parent / "compare" / "feedback.yaml").measure)
    told = answers.take(Measured.of(run.model, run.data, run.recipe), lambda progress: None)
    assert told.figures["kl"] > 0
    assert told.figures["length"] <= 16


@pytest.mark.slow
def test_a_reward_model_is_made_of_the_fine_tuned_one_and_judges(chain):
    import_weights(small("reward", weights=None), "runs/align/sft", "runs/align/scored")
    run = fit(small("reward"), folder="runs/align/reward", progress=False)
    assert {"accuracy", "validation.accuracy"} <= {row["name"] for row in run.means}
    policy = fit(small("ppo_learned"), folder="runs/align/ppo_learned", progress=False)
    assert {"reward", "kl"} <= {row["name"] for row in policy.means}


@pytest.mark.slow
def test_what_came_of_it_answers(chain, capsys):
    assert main(["generate", "runs/align/sft", "--ask", "3 1 2", "--max-new-tokens", "6"]) == 0
    assert capsys.readouterr().out.startswith("3 1 2\n")
    assert load_run("runs/align/sft").answer(["3 1 2"], max_new_tokens=6)
