"""Recipes that name the parameters that are trained: the rest stay as they begin, and cost no more than that."""

import os
import signal

import bakeoff
import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.errors import CapabilityError, RecipeError, UserError
from bakeoff.evaluate import Measured
from bakeoff.evaluate.layouts import plan_layouts
from bakeoff.evaluate.planning import plan_recipe
from bakeoff.evaluate.stepping import TrainingSteps
from bakeoff.evaluate.tasks.small import small
from bakeoff.model.devices import accelerator
from bakeoff.parts.causal import Causal
from bakeoff.recipe.reading import as_yaml
from bakeoff.train import fit, load_run
from bakeoff.train.assembly import assemble
from bakeoff.train.devices import check_devices
from bakeoff.train.module import TrainingModule

UPPER = ["backbone.blocks.1.mixer.*", "backbone.blocks.1.feed_forward.*"]
#: Of the recipe of conftest.py, D = 16: query, key, value and output; up and down of an MLP of width 16.
N_UPPER = 4 * 16 * 16 + 2 * 16 * 16
SHORT = {"trainer__max_steps": 2, "checkpoint__every_steps": None, "validation__every_steps": None}


@pytest.fixture
def partly(tiny):
    """The tiny recipe, of which `patterns` are trained."""

    def make(patterns=UPPER, **overrides):
        return tiny(trained=patterns, **overrides)

    return make


def is_upper(name):
    return name.startswith(("backbone.blocks.1.mixer.", "backbone.blocks.1.feed_forward."))


def check_moved(run, before):
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (not is_upper(name)), name


def begin_of(recipe):
    model = recipe.build("model", vocab_size=recipe.build("data").vocab_size)
    return model.initialise(recipe.seed_of("initialisation")).state_dict()


def test_what_is_not_named_stays_and_a_killed_run_continues_exactly(partly, tmp_path, in_child, same_run, capsys):
    recipe = partly(trainer__max_steps=4, validation__every_steps=None)
    whole = fit(recipe, folder=tmp_path / "whole", progress=True)
    assert f"parameters ({N_UPPER / 1000:.2f}k trained), 4 steps" in capsys.readouterr().err
    check_moved(whole, begin_of(recipe))
    held = torch.load(tmp_path / "whole" / "checkpoints" / "step-4.ckpt", weights_only=True)
    names = {f"model.{name}" for name in whole.model.state_dict()}
    assert names <= held["state_dict"].keys()
    assert sum(state["exp_avg"].numel() for state in held["optimizer_states"][0]["state"].values()) == N_UPPER

    def killed():
        backward = TrainingModule.backward

        def dying(self, loss):
            if self.clock.step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            backward(self, loss)

        TrainingModule.backward = dying
        fit(recipe, folder=tmp_path / "killed", progress=False)

    assert in_child(killed) == -signal.SIGKILL
    same_run(fit(recipe, folder=tmp_path / "killed", progress=False), whole)
    assert {n for n, p in load_run(tmp_path / "whole").model.named_parameters() if p.requires_grad} == {
        name for name in whole.model.state_dict() if is_upper(name)
    }


def test_gradients_of_the_rest_are_those_of_the_whole_model(partly, tmp_path):
    """The first step's norm, against plain autograd over all parameters."""
    plain = {"model__blocks__layer__dropout": 0.0, **SHORT}
    run = fit(partly(**plain), folder=tmp_path / "run", progress=False)
    one = assemble(partly(None, **plain), progress=False)
    total, weight = 0.0, 0.0
    for batch, _ in zip(one.data.training(tokens_wanted=17, seed=one.recipe.seed_of("data")), range(2), strict=False):
        ((sum_, count),) = Causal()(one.model, batch)[0].values()
        total, weight = total + sum_, weight + count
    (total / weight).backward()
    squares = [p.grad.square().sum() for name, p in one.model.named_parameters() if is_upper(name)]
    assert run.curve[0]["grad_norm"] == pytest.approx(float(sum(squares).sqrt()), rel=1e-5)


def test_recomputation_changes_nothing(partly, tmp_path):
    """Also of the first block, which is given nothing that has a gradient."""
    kept, *anew = (
        fit(partly(trainer__recompute=mode, **SHORT), folder=tmp_path / mode, progress=False).model.state_dict()
        for mode in ("none", "selective", "full")
    )
    for name, tensor in kept.items():
        assert all(torch.equal(other[name], tensor) for other in anew), name


WRONG = {
    "backbone.blocks.*.mixr.*": "no name matches 'backbone.blocks.*.mixr.*'; the nearest are backbone.blocks.*.mixer",
    "backbone.blocks.0.mixer": "did you mean 'backbone.blocks.0.mixer.*'?",
    "blocks.0.mixer.query.weight": "the nearest are backbone.blocks.*.mixer.query.weight",
}


@pytest.mark.parametrize("pattern", WRONG)
def test_a_pattern_that_matches_nothing_is_told_before_the_run(tiny, tmp_path, capsys, pattern):
    path = tmp_path / "recipe.yaml"
    path.write_text(as_yaml({**tiny().tree, "trained": ["backbone.norm.*", pattern]}))
    for command in (["check", str(path)], ["fit", str(path), "--folder", str(tmp_path / "run")]):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert WRONG[pattern] in told
        assert "recipe.yaml:" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [[], "backbone.*", [3]])
def test_what_is_no_list_of_patterns(tiny, value):
    with pytest.raises(RecipeError, match=r"^trained"):
        tiny(trained=value).check()


MIXTURE = {
    "use": "mixture_of_experts",
    "n_experts": 4,
    "expert": {"use": "mlp", "width": 8},
    "router": {"use": "bias_balanced", "k": 2},
}


def test_nothing_is_left_where_a_part_has_frozen_what_is_named(tiny):
    frozen = {"model__blocks__layer__feed_forward": {**MIXTURE, "freeze": "router"}}
    with pytest.raises(RecipeError, match="nothing is left to train"):
        tiny(trained=["*.router.*"], **frozen).demands()


def test_what_learns_by_rule_stays_with_the_router_that_is_not_named(tiny, tmp_path):
    sparse = {"model__blocks__layer__feed_forward": MIXTURE, **SHORT}
    moved = {}
    for part in ("experts", "router"):
        recipe = tiny(trained=[f"*.{part}.*"], **sparse)
        after = fit(recipe, folder=tmp_path / part, progress=False).model.state_dict()
        before = begin_of(recipe)
        moved[part] = {name for name in after if not torch.equal(after[name], before[name])}
    assert all(".experts." in name for name in moved["experts"])
    assert "backbone.blocks.0.feed_forward.router.selection_bias" in moved["router"]
    assert all(".router." in name for name in moved["router"])


@pytest.mark.parametrize("name", ["backbone.embed.weight", "head.projection.weight"])
def test_a_tied_weight_goes_by_either_name(tiny, name):
    model = tiny(trained=[name]).demands()
    assert [own for own, parameter in model.named_parameters() if parameter.requires_grad] == ["backbone.embed.weight"]
    assert model.head.projection.weight is model.backbone.embed.weight


def test_plans_count_gradients_states_and_sending_of_what_is_trained(partly):
    """AdamW: two moments of four bytes, and four bytes of a count for each of six tensors."""
    planned, whole = plan_recipe(partly()), plan_recipe(partly(None))
    assert planned.trained == N_UPPER
    assert planned.memory.gradients == 4 * N_UPPER
    assert planned.memory.optimizer == 8 * N_UPPER + 6 * 4
    assert planned.memory.parameters == whole.memory.parameters
    assert planned.memory.activations < whole.memory.activations


def test_plans_of_layouts_send_gradients_of_what_is_trained(partly):
    layouts = plan_layouts(partly(trainer__recompute="full"), accelerator("h100"), 2)
    assert layouts.groups == ((0,), (1,))
    (data,) = [one for one in layouts.ranking.fitting if one.layout.data == 2]
    assert data.memory.gradients == 4 * N_UPPER
    assert data.sent == 4 * N_UPPER  # an all-reduce over two ranks: 2 (P - 1) / P of its size
    (shard,) = [one for one in layouts.ranking.fitting if one.layout.shard == 2]
    assert shard.memory.gradients == 4 * N_UPPER / 2


def test_what_is_measured_steps_alike(partly):
    one = assemble(partly(), progress=False)
    steps = TrainingSteps(Measured.of(one.model, one.data, one.recipe))
    steps.step()
    before = one.model.state_dict()
    for name, tensor in steps.model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (not is_upper(name)), name


def test_a_small_model_of_the_same_mixers_is_trained_whole(partly):
    assert small(partly(), d_model=16, depth=1).tree["trained"] is None


def test_only_what_is_trained_must_be_updated_in_parts(tiny):
    """Vectors stand whole on each rank; Adafactor looks at whole matrices."""
    sharded = {
        "optimizer": {"use": "torch.optim.Adafactor", "lr": 1e-2},
        "trainer__strategy": {"use": "mesh_fsdp"},
        "trainer__devices": 2,
        "trainer__accelerator": "cpu",
    }
    with pytest.raises(CapabilityError, match="Adafactor does not update each element by itself"):
        check_devices(tiny(**sharded), tiny(**sharded).demands())
    vectors = tiny(trained=["*norm.weight"], **sharded)
    check_devices(vectors, vectors.demands())


def test_a_loss_in_which_nothing_trained_has_a_part_is_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Causal, "forward", lambda self, model, batch: ({"loss": (torch.ones(()), torch.ones(()))}, {}))
    with pytest.raises(UserError, match="nothing that is trained has a part in the loss"):
        fit(tiny(), folder=tmp_path / "run", progress=False)


def test_a_recipe_without_it_keeps_its_hash_and_one_with_it_has_another(tiny, partly):
    plain = {key: value for key, value in tiny().tree.items() if key != "trained"}
    assert bakeoff.recipe(plain).hash() == tiny().hash() != partly().hash()
