"""Every comparison that is shipped can be planned, and its arms can be tried at its tasks."""

from __future__ import annotations

import bakeoff
import pytest
from bakeoff.compare.plan import Plan
from bakeoff.evaluate import asked
from bakeoff.recipe import comparison
from bakeoff.registry import find, names
from bakeoff.train import fit

from . import published

RECIPES = published.MODELS.parent
FOLDERS = ("", "align/", "compare/", "long_context/", "retrieval/")
FILES = sorted(path for folder in FOLDERS for path in RECIPES.glob(f"{folder}*.yaml"))
COMPARISONS = [path for path in FILES if "arms:" in path.read_text()]


@pytest.fixture(scope="module", autouse=True)
def runs_to_begin_from(tmp_path_factory):
    """The tests stand in a folder that holds, in small, the runs whose weights shipped recipes begin from."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "text.txt").write_text("A rose is a rose is a rose. " * 40)
    short = {"data.cache": str(folder / "cache"), "trainer.max_steps": 1}
    text = {"data.corpus": {"use": "text_files", "path": str(folder / "text.txt")}}
    few = {"data.corpus.count": 20, "data.corpus.validation_count": 4, "weights": None}
    for name, changes in {"long_context/stage_1": text, "align/sft": few}.items():
        made = bakeoff.recipe(RECIPES / f"{name}.yaml", changes | short)
        fit(made, folder=folder / "runs" / name, progress=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


@pytest.fixture(scope="module")
def planned():
    plans = {}

    def plan(path):
        if path not in plans:
            plans[path] = Plan(comparison(path), prepare=False, progress=False)
        return plans[path]

    return plan


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_a_shipped_comparison_is_matched_and_all_its_parts_do_what_is_asked(path, planned):
    plan = planned(path)
    assert len(plan.runs({arm.name: plan.points[0] for arm in plan.arms})) == len(plan.arms) * len(plan.spec.seeds)
    for arm in plan.arms:
        assert arm.matched is None or abs(arm.matched.error) <= plan.spec.match.within
        assert arm.costs.whole.state is not None


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_the_small_models_of_its_arms_hold_their_mixers_and_nothing_else(path, planned):
    plan = planned(path)
    tasks = [each.take.__self__ for each in asked(plan.spec.measure) if each.task == "mqar"]
    for task, arm in [(task, arm) for task in tasks for arm in plan.arms]:
        model = task.untrained(arm.recipe)
        blocks = arm.recipe.tree["model"]["blocks"]
        assert {type(block.mixer) for block in model.backbone.layers} == {
            find(block["mixer"]["use"]) for block in blocks.values() if block["mixer"]
        }
        assert all(block.feed_forward is None for block in model.backbone.layers)
        assert model.context.d_model == task.d_model


def test_the_comparison_of_mixers_has_them_all():
    arms = comparison(RECIPES / "compare" / "mixers.yaml").arms.values()
    used = {block["mixer"]["use"] for arm in arms for block in arm.tree["model"]["blocks"].values()}
    assert used == {entry.name for entry in names("mixer") if entry.package == "bakeoff"}


@pytest.mark.parametrize("path", [path for path in FILES if path not in COMPARISONS], ids=lambda path: path.stem)
def test_a_shipped_recipe_meets_its_own_demands(path):
    assert next(bakeoff.recipe(path).demands().parameters()).is_meta
