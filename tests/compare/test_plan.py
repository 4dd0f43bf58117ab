import shutil
from pathlib import Path

import pytest
import torch
from bakeoff import register, registry
from bakeoff.compare.plan import Plan, check_names, comparison_hash, trial
from bakeoff.compare.tuning import points
from bakeoff.errors import UserError
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.files import write_sealed
from bakeoff.recipe import comparison


def planned(mapping, **overrides):
    return Plan(comparison(mapping, overrides), prepare=True, progress=False)


def runs(plan):
    return plan.runs({arm.name: {} for arm in plan.arms})


def test_all_arms_get_the_budgets_steps(tiny):
    plan = planned(tiny)
    assert [(arm.steps, arm.tokens) for arm in plan.arms] == [(10, 2560), (10, 2560)]
    assert all(trial.recipe.tree["trainer"]["max_steps"] == 10 for trial in runs(plan))
    assert plan.notes == []


def test_budget_that_fills_no_whole_step_is_rounded_and_said(tiny):
    plan = planned(tiny, **{"budget.tokens": 2700})
    assert [arm.steps for arm in plan.arms] == [11, 11]
    assert plan.notes == ["2,700 tokens are no multiple of 256 a step: 11 steps, 2,816 tokens."]


def test_arms_that_are_validated_on_other_text_are_named(tiny):
    arms = {"attention": {}, "halves": {"data.corpus.validation": 0.5}}
    plan = planned({**tiny, "arms": arms, "match": {"by": "none"}})
    (note,) = plan.notes
    assert note.startswith("Validated on other text than attention: halves. ")
    assert [facts["other_text"] for facts in plan.document()["arms"]] == [False, True]


def test_arms_that_are_validated_on_the_same_text_of_another_corpus_are_not(tiny, tmp_path):
    path = Path(comparison(tiny, {}).arms["attention"].tree["data"]["corpus"]["path"])
    shutil.copytree(path, tmp_path / "copy")
    arms = {"attention": {}, "copy": {"data.corpus.path": str(tmp_path / "copy")}}
    assert planned({**tiny, "arms": arms, "match": {"by": "none"}}).other_texts == []


def test_total_work_is_three_forwards_of_every_token_of_every_trial(tiny):
    plan = planned(tiny)
    for arm, flops in plan.flops():
        assert flops == 3 * arm.costs.whole.flops * 2560 * 2


def test_seeds_run_in_rounds_and_each_round_begins_with_another_arm(tiny):
    order = [(trial.seed, trial.arm.name) for trial in runs(planned(tiny))]
    assert order == [(0, "attention"), (0, "window"), (1, "window"), (1, "attention")]


def test_on_one_seed_arms_share_data_order_and_values_of_equal_parameters(tiny):
    tiny["arms"]["one_head"] = {"model.blocks.layer.mixer.n_kv_heads": 1}
    first, second, third = (t.recipe for t in runs(planned(tiny, seeds=[5])))
    assert first.seed_of("data") == second.seed_of("data") == third.seed_of("data")
    models = [r.build("model", vocab_size=257).initialise(r.seed_of("initialisation")) for r in (first, third)]
    values = [dict(model.named_parameters()) for model in models]
    same = [name for name in values[0] if values[0][name].shape == values[1][name].shape]
    assert len(same) > 4
    assert all(torch.equal(values[0][name], values[1][name]) for name in same)


def test_seeds_differ_in_order_and_values(tiny):
    one, two = (trial.recipe for trial in runs(planned(tiny)) if trial.arm.name == "attention")
    assert one.seed_of("data") != two.seed_of("data")
    assert one.seed_of("initialisation") != two.seed_of("initialisation")


def test_a_trials_name_is_a_function_of_all_that_decides_it(tiny):
    names = [trial.name for trial in runs(planned(tiny))]
    assert names == [trial.name for trial in runs(planned(tiny))]
    assert len(set(names)) == 4
    for changed in ({"optimizer.lr": 0.01}, {"budget.tokens": 5120}, {"measure": ["validation", "decode"]}):
        assert not set(names) & {trial.name for trial in runs(planned(tiny, **changed))}


def test_a_trials_name_knows_the_weights_of_runs_that_its_tasks_compare_with(tiny, tmp_path):
    folder = tmp_path / "reference"
    folder.mkdir()
    (folder / "recipe.yaml").touch()
    (arm, _), names = planned(tiny).arms, []
    for digest in ("one", "one", "another"):
        write_sealed(folder / "summary.json", {"files": {"model.pt": digest}})
        names.append(trial(arm, 0, {}, "run", [{"use": "answers", "reference": str(folder)}], "tiny").name)
    assert names[0] == names[1] != names[2]


def test_a_seed_or_an_arm_more_keeps_the_names_of_the_others(tiny):
    names = {trial.name for trial in runs(planned(tiny))}
    assert names < {trial.name for trial in runs(planned(tiny, seeds=[0, 1, 2]))}
    tiny["arms"]["wide"] = {"model.d_model": 32}
    assert names < {trial.name for trial in runs(planned(tiny))}


def test_another_text_is_another_trial(tiny, words, tmp_path):
    names = {trial.name for trial in runs(planned(tiny))}
    (tmp_path / "more").mkdir()
    for file in words.glob("*.txt"):
        (tmp_path / "more" / file.name).write_text(file.read_text() + "\nOne line more.")
    changed = planned(tiny, **{"data.corpus.path": str(tmp_path / "more")})
    assert not names & {trial.name for trial in runs(changed)}


def test_comparisons_hash_leaves_out_name_and_executor(tiny):
    first = comparison_hash(comparison(tiny))
    assert comparison_hash(comparison(tiny, {"executor.slots": 2, "name": "other"})) == first
    assert comparison_hash(comparison(tiny, {"seeds": [0]})) != first
    assert comparison_hash(comparison(tiny, {"model.d_model": 32})) != first


def test_search_tries_all_arms_at_all_points_on_a_seed_of_its_own(tiny):
    plan = planned(tiny, **{"tune": {"optimizer.lr": [1e-3, 1e-2], "model.d_model": [16, 32]}})
    search = plan.search(plan.arms)
    assert len(search) == 2 * 4
    assert {trial.seed for trial in search} == {2}
    assert [trial.arm.name for trial in search[:2]] == ["attention", "window"]
    assert all(trial.measures == ("validation",) for trial in search)
    assert search[-1].recipe.tree["optimizer"]["lr"] == 1e-2
    assert search[-1].recipe.tree["model"]["d_model"] == 32


def test_one_point_needs_no_search(tiny):
    plan = planned(tiny, **{"tune": {"optimizer.lr": [0.02]}})
    assert plan.search(plan.arms) == []
    (first, *_) = plan.runs({arm.name: plan.points[0] for arm in plan.arms})
    assert first.recipe.tree["optimizer"]["lr"] == 0.02


def test_points_are_all_combinations_the_last_path_fastest():
    assert points({}) == [{}]
    grid = {"a": [1, 2], "b": ["x", "y"]}
    assert points(grid) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]


def test_an_arm_that_cannot_be_built_is_told_before_anything_runs(tiny):
    tiny["arms"]["odd"] = {"model.blocks.layer.mixer.n_heads": 3}
    with pytest.raises(UserError, match="n_heads"):
        planned(tiny)


def test_arms_that_would_share_a_folder_are_refused(tiny):
    tiny["arms"] = {"a b": {}, "a/b": {}}
    with pytest.raises(UserError, match="rename one"):
        check_names(comparison(tiny))


def test_checkpoints_are_written_so_that_a_kill_loses_a_tenth_at_most(tiny):
    assert all(t.recipe.tree["checkpoint"]["every_steps"] == 1 for t in runs(planned(tiny)))
    kept = planned(tiny, **{"checkpoint.every_steps": 7})
    assert all(t.recipe.tree["checkpoint"]["every_steps"] == 7 for t in runs(kept))


def test_a_search_that_undoes_the_matching_is_refused(tiny):
    with pytest.raises(UserError, match="d_model 32 arm attention has parameters"):
        planned(tiny, **{"tune": {"model.d_model": [16, 32]}, "match.by": "parameters"})
    assert planned(tiny, **{"tune": {"optimizer.lr": [0.1, 0.2]}, "match.by": "parameters"}).searches


def loggers_of(tiny, logger):
    tiny["base"]["trainer"]["logger"] = logger
    (first, *_) = runs(planned(tiny, seeds=[0]))
    return first.name, first.recipe.tree["trainer"]["logger"]


def test_loggers_get_the_comparison_as_group_and_the_trial_as_run(tiny):
    own = "lightning.pytorch.loggers"
    name, csv = loggers_of(tiny, {"use": f"{own}.CSVLogger", "save_dir": "logs"})
    assert (csv["name"], csv["version"]) == ("tiny", name)
    _, (wandb, mlflow) = loggers_of(tiny, [{"use": f"{own}.WandbLogger"}, {"use": f"{own}.MLFlowLogger"}])
    assert wandb["dict_kwargs"] == {"group": "tiny"}
    assert (wandb["name"], wandb["id"]) == ("attention, seed 0", name)
    assert (mlflow["experiment_name"], mlflow["run_name"]) == ("tiny", "attention, seed 0")


def test_names_that_a_recipe_gives_its_loggers_are_kept(tiny):
    logger = {"use": "lightning.pytorch.loggers.CSVLogger", "save_dir": "logs", "name": "mine"}
    name, csv = loggers_of(tiny, logger)
    assert (csv["name"], csv["version"]) == ("mine", name)


def test_a_part_of_this_process_alone_is_refused_before_anything_runs(tiny):
    @register("only_here")
    class OnlyHere(Attention):
        pass

    tiny["arms"]["mine"] = {"model.blocks.layer.mixer": {"use": "only_here", "n_heads": 2}}
    try:
        with pytest.raises(UserError, match=r"arm mine: mixer 'only_here' is registered in this process alone"):
            planned(tiny)
    finally:
        del registry._registered["only_here"]
