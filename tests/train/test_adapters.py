"""Runs that train low-rank adapters: from a finished run on, alone, and merged in the end."""

import os
import signal

import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.evaluate import Measured
from bakeoff.evaluate.layouts import plan_layouts
from bakeoff.evaluate.planning import plan_recipe
from bakeoff.evaluate.stepping import TrainingSteps
from bakeoff.model.devices import accelerator
from bakeoff.parts.adapters import adapter_parameters, has_adapters, without
from bakeoff.parts.causal import Causal
from bakeoff.recipe.reading import as_yaml
from bakeoff.train import export_weights, fit, import_weights, load_run
from bakeoff.train.assembly import assemble
from bakeoff.train.module import TrainingModule

#: Of the recipe of conftest.py, r = 2: four layers (16, 16), and two of an MLP of width 16, in two blocks.
N_ADAPTERS = 2 * 6 * 2 * (16 + 16)
SHORT = {"trainer__max_steps": 2, "checkpoint__every_steps": None, "validation__every_steps": None}


@pytest.fixture
def source(tiny, tmp_path):
    """A finished run of two steps, without adapters."""
    return fit(tiny(**SHORT, seed=7), folder=tmp_path / "source", progress=False)


@pytest.fixture
def tuning(tiny, source):
    """`tuning(…)`: a recipe that begins with that run's weights and trains adapters of rank 2."""

    def make(adapters=None, **overrides):
        return tiny(adapters={"rank": 2, **(adapters or {})}, weights=str(source.folder), **overrides)

    return make


@pytest.fixture
def tokens():
    return torch.randint(200, (2, 12), generator=torch.Generator().manual_seed(1))


def test_adapters_alone_move_and_a_killed_run_continues_exactly(
    tuning, source, tokens, tmp_path, in_child, same_run, capsys
):
    recipe = tuning({"dropout": 0.1}, trainer__max_steps=4, validation__every_steps=None)
    whole = fit(recipe, folder=tmp_path / "whole", progress=True)
    assert f"({N_ADAPTERS} trained), 4 steps" in capsys.readouterr().err
    for name, tensor in source.model.state_dict().items():
        assert torch.equal(whole.model.state_dict()[name], tensor), name
    assert all(p.abs().max() > 0 for p in adapter_parameters(whole.model).values())
    held = torch.load(tmp_path / "whole" / "checkpoints" / "step-4.ckpt", weights_only=True)
    assert sum(state["exp_avg"].numel() for state in held["optimizer_states"][0]["state"].values()) == N_ADAPTERS

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
    loaded = load_run(tmp_path / "whole").model
    assert torch.equal(loaded.logits(tokens)[0], whole.model.logits(tokens)[0])
    with without(loaded):
        assert torch.equal(loaded.logits(tokens)[0], source.model.logits(tokens)[0])


def test_it_begins_as_the_run_that_it_is_from(tuning, source, tokens, tmp_path):
    run = fit(tuning(optimizer__lr=0.0, **SHORT), folder=tmp_path / "run", progress=False)
    assert torch.equal(run.model.logits(tokens)[0], source.model.logits(tokens)[0])
    path = "backbone.blocks.{}.mixer.query.adapter.down.weight"
    first, second = (adapter_parameters(run.model)[path.format(i)] for i in (0, 1))
    assert 0.5 < float(first.detach().std()) * 4 < 1.5  # drawn, each by its name
    assert not torch.equal(first, second)


def test_a_run_goes_on_from_another_ones_adapters(tuning, tmp_path):
    first = fit(tuning(**SHORT), folder=tmp_path / "first", progress=False)
    again = tuning(optimizer__lr=0.0, **SHORT).override({"weights": str(first.folder)})
    second = fit(again, folder=tmp_path / "second", progress=False)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"adapters.rank": 3}, "backbone.blocks.0.mixer.query.adapter.down.weight: (2, 16) there, (3, 16) here"),
        ({"adapters": None}, "backbone.blocks.0.mixer.query.adapter.down.weight: (2, 16) there, none here"),
        ({"adapters.on": ["*.mixer.*"]}, "feed_forward.up.adapter.down.weight: (2, 16) there, none here"),
    ],
)
def test_other_adapters_than_those_of_the_run_are_told(tuning, tmp_path, changes, name):
    first = fit(tuning(**SHORT), folder=tmp_path / "first", progress=False)
    recipe = tuning(**SHORT).override({"weights": str(first.folder), **changes})
    with pytest.raises(UserError) as error:
        fit(recipe, folder=tmp_path / "second", progress=False)
    assert name in str(error.value)


def test_another_model_below_the_adapters_is_told_without_naming_them(tuning, tmp_path):
    with pytest.raises(UserError) as error:
        fit(tuning(model__blocks__layer__feed_forward__width=24), folder=tmp_path / "run", progress=False)
    assert "backbone.blocks.0.feed_forward.up.weight: (16, 16) there, (24, 16) here" in str(error.value)
    assert "adapter" not in str(error.value)


def test_merged_it_is_a_run_of_the_plain_recipe(tuning, tiny, source, tokens, tmp_path, capsys):
    run = fit(tuning(optimizer__lr=0.1, **SHORT), folder=tmp_path / "run", progress=False)
    path = tmp_path / "plain.yaml"
    path.write_text(as_yaml({**tiny().tree, "converter": {"use": "merged_adapters"}}))
    command = ["convert", str(run.folder), "--recipe", str(path), "--folder", str(tmp_path / "merged")]
    assert main(command) == 0
    merged = load_run(tmp_path / "merged")
    assert not has_adapters(merged.model)
    assert merged.model.state_dict().keys() == source.model.state_dict().keys()
    torch.testing.assert_close(merged.model.logits(tokens)[0], run.model.logits(tokens)[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(run.model.logits(tokens)[0], source.model.logits(tokens)[0], atol=1e-2)
    further = fit(tiny(weights=str(merged.folder), **SHORT), folder=tmp_path / "further", progress=False)
    assert further.curve[-1]["step"] == 2


def test_what_cannot_be_merged_is_told(tuning, tiny, tmp_path):
    run = fit(tuning(**SHORT), folder=tmp_path / "run", progress=False)
    converter = {"converter": {"use": "merged_adapters"}}
    with pytest.raises(UserError, match="write adapters: null"):
        import_weights(tuning().override(converter), run.folder, tmp_path / "merged")
    wider = tiny(model__blocks__layer__feed_forward__width=24).override(converter)
    with pytest.raises(UserError, match=r"feed_forward.up.weight: \(16, 16\) there, \(24, 16\) here"):
        import_weights(wider, run.folder, tmp_path / "merged")
    with pytest.raises(UserError, match="has adapters, which no published layout holds; merge them first"):
        export_weights(run, tmp_path / "published")
    assert export_weights(run, tmp_path / "own", own_names=True).exists()


def test_plans_count_gradients_and_states_of_adapters_alone(tuning, tiny, tmp_path, capsys):
    """AdamW: two moments of four bytes, and four bytes of a count for each of 24 tensors."""
    planned, plain = plan_recipe(tuning()), plan_recipe(tiny())
    assert planned.trained == N_ADAPTERS
    assert planned.model.parameters.total == plain.model.parameters.total + N_ADAPTERS
    assert planned.memory.gradients == 4 * N_ADAPTERS
    assert planned.memory.optimizer == 8 * N_ADAPTERS + 24 * 4
    assert planned.memory.parameters == plain.memory.parameters + 4 * N_ADAPTERS
    assert planned.memory.peak < plain.memory.peak
    assert planned.model.whole.flops == plain.model.whole.flops + 2 * N_ADAPTERS
    path = tmp_path / "recipe.yaml"
    path.write_text(as_yaml(tuning().tree))
    assert main(["plan", str(path), "--bandwidth", "100"]) == 0
    assert f"trained parameters {N_ADAPTERS:,}" in " ".join(capsys.readouterr().out.split())


def test_plans_of_layouts_send_gradients_of_adapters_alone(tuning):
    layouts = plan_layouts(tuning(trainer__recompute="full"), accelerator("h100"), 2)
    (data,) = [one for one in layouts.ranking.fitting if one.layout.data == 2]
    assert data.memory.gradients == data.sent == 4 * N_ADAPTERS
    (tensor,) = [one for one in layouts.ranking.fitting if one.layout.tensor == 2]
    assert tensor.memory.gradients == 4 * N_ADAPTERS * 3 / 4  # of each pair, one factor is shared out


def test_what_is_measured_steps_alike(tuning):
    one = assemble(tuning(), progress=False)
    steps = TrainingSteps(Measured.of(one.model, one.data, one.recipe))
    before = {name: tensor.clone() for name, tensor in steps.model.state_dict().items()}
    steps.step()
    moved = {name for name, tensor in steps.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == adapter_parameters(one.model).keys()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_recomputation_trains_adapters_alike_in_bfloat16(tuning, tmp_path, precision):
    kept, anew = (
        fit(
            tuning(trainer__recompute=mode, trainer__precision=precision, **SHORT),
            folder=tmp_path / mode,
            progress=False,
        ).model.state_dict()
        for mode in ("none", "full")
    )
    assert any(float(tensor.abs().max()) > 0 for name, tensor in kept.items() if name.endswith("adapter.up.weight"))
    for name, tensor in kept.items():
        assert torch.equal(anew[name], tensor), name


MIXED = {"use": "mixture_of_experts", "n_experts": 4, "expert": {"use": "mlp", "width": 8}}


@pytest.mark.parametrize(
    "parts",
    [
        {"model__blocks__layer__mixer": {"use": "mamba2", "head_width": 8, "state_size": 8, "chunk": 8}},
        {"model__blocks__layer__mixer": {"use": "slstm", "n_heads": 2}},
        {"model__blocks__layer__feed_forward": MIXED},
    ],
    ids=["mamba2", "slstm", "experts"],
)
def test_any_backbone_learns_by_adapters(tiny, parts, tmp_path):
    """A batch that was trained on costs less with the adapters than without them."""
    source = fit(tiny(**parts, **SHORT), folder=tmp_path / "source", progress=False)
    more = {**SHORT, "trainer__max_steps": 16, "optimizer__lr": 0.03}
    recipe = tiny(**parts, **more, adapters={"rank": 2}, weights=str(source.folder))
    run = fit(recipe, folder=tmp_path / "run", progress=False)
    batch = next(iter(run.data.training(tokens_wanted=17, seed=recipe.seed_of("data"))))
    with torch.no_grad():
        ((total, count),) = Causal()(run.model, batch)[0].values()
        with without(run.model):
            ((before, _),) = Causal()(run.model, batch)[0].values()
    assert total / count < before / count - 0.05
    for name, tensor in source.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], tensor), name
