"""What is built, saved, printed and hashed."""

import io
import random
import subprocess
import sys

import bakeoff
import pytest
import torch
import yaml
from bakeoff import register
from bakeoff.errors import CapabilityError, RecipeError
from bakeoff.interfaces import Result, SequenceMixer
from bakeoff.recipe import recipe
from bakeoff.recipe.files import shipped

MODELS = sorted(path.relative_to(shipped()).as_posix() for path in (shipped() / "models").glob("*.yaml"))


@register("forgets_borders")
class ForgetsBorders(SequenceMixer):
    """Claims nothing about documents."""

    def forward(self, x, sequence, state=None):
        return Result(x, state)


@pytest.mark.parametrize("first", ["bakeoff", "bakeoff.recipe", "from bakeoff.recipe import Recipe"])
def test_bakeoff_recipe_is_called_whatever_was_imported_first(small, first):
    line = first if first.startswith("from") else f"import {first}"
    code = (
        f"{line}\nimport bakeoff\nassert bakeoff.recipe({str(small)!r}).name == 'small'\nfrom bakeoff import recipe\n"
    )
    code += f"assert recipe({str(small)!r}).name == 'small'\nimport bakeoff.recipe\nbakeoff.recipe({str(small)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_model_is_what_the_recipe_says(small):
    model = recipe(small).build("model", vocab_size=40)
    assert (model.context.d_model, model.context.vocab_size, model.context.max_length) == (32, 40, 32)
    assert len(model.backbone.layers) == 2
    assert model.backbone.layers[0].feed_forward.width == 64
    assert model.backbone.layers[0].mixer is not model.backbone.layers[1].mixer
    given = recipe(small, ["model.max_length=128", "model.tied_embedding=false"]).build("model", vocab_size=40)
    assert given.context.max_length == 128
    assert given.head.projection.weight is not given.backbone.embedding


def test_only_the_plugins_in_use_are_imported(small):
    code = f"""
import sys
from bakeoff.recipe import recipe
recipe({str(small)!r}).check().build("model", vocab_size=8)
assert not [name for name in sys.modules if name.startswith("bakeoff_")]
recipe({str(small)!r}, ["model.blocks.layer.mixer={{use: mamba2}}"]).check()
assert "bakeoff_ssm" in sys.modules
assert "bakeoff_rnn" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_other_sections(small):
    made = recipe(small, ["optimizer.betas=[0.9, 0.95]", "schedule={use: cosine, warmup: 2}"])
    optimizer = made.build("optimizer")([torch.nn.Parameter(torch.ones(1))])
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.defaults["betas"] == (0.9, 0.95)
    assert made.build("schedule").factor(0, 10) == 0.5
    assert made.build("data").batch_tokens == 256
    assert type(made.build("objective")).__name__ == "Causal"
    assert made.build("model.blocks.layer.feed_forward").keywords == {"width": 64}


def test_seeds_derive_from_one_and_can_be_set_apart(small):
    made = recipe(small)
    purposes = ("initialisation", "data", "dropout", "sampling")
    assert len({made.seed_of(purpose) for purpose in purposes}) == 4
    other = made.override(["seed=1"])
    assert all(made.seed_of(purpose) != other.seed_of(purpose) for purpose in purposes)
    apart = made.override(["seed={data: 5}"])
    assert apart.seed_of("data") == 5
    assert apart.seed_of("dropout") == made.seed_of("dropout")
    with pytest.raises(ValueError, match="is no seed"):
        made.seed_of("noise")


def test_sources(small):
    made = recipe(small, ["model.depth=3", "model.blocks.layer.feed_forward={use: mlp, width: 8}"])
    assert made.sources["model.depth"] == "override"
    assert made.sources["model.d_model"] == f"{small}:2"
    assert made.sources["model.blocks.layer.mixer.window"] == f"{small}:8"
    assert made.sources["model.blocks.layer.mixer.qk_norm"] == "default"
    assert made.sources["model.blocks.layer.feed_forward.width"] == "override"
    assert made.sources["model.blocks.layer.feed_forward.activation"] == "default"
    assert made.sources["model.use"] == "default"
    assert made.sources["seed"] == "default"


def test_what_is_printed_is_a_recipe_with_the_source_of_each_value(small, write, tmp_path, monkeypatch):
    from rich.console import Console

    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    made = recipe("small.yaml", ["model.depth=3"])
    made.print(Console(file=out, width=20))
    lines = {line.partition("#")[0].strip(): line.partition("# ")[2] for line in out.getvalue().splitlines()}
    assert lines["depth: 3"] == "override"
    assert lines["d_model: 32"] == "small.yaml:2"
    assert lines["compile: false"] == "default"
    assert recipe(write("printed.yaml", out.getvalue())).full == made.full


def test_saved_recipes_are_long_whole_and_have_versions(small):
    saved = recipe(small).saved()
    block = saved["model"]["init_args"]["blocks"]["layer"]
    assert block["class_path"] == "bakeoff.parts.blocks.pre_norm.PreNorm"
    mixer = block["init_args"]["mixer"]["init_args"]
    assert mixer["n_kv_heads"] is None
    assert "n_kv_heads" in mixer
    assert saved["optimizer"]["class_path"] == "torch.optim.AdamW"
    assert saved["optimizer"]["init_args"]["weight_decay"] == 0.01
    assert {"python", "torch", "lightning", "bakeoff"} <= set(saved["versions"])


# an explicit null survives, so that a default that is not null does not come back
def test_explicit_nulls_survive(small):
    made = recipe(small, ["model.norm=null"])
    back = recipe(yaml.safe_load(yaml.safe_dump(made.saved())))
    assert back.full["model"]["norm"] is None
    assert back.build("model", vocab_size=8).backbone.norm is None


def described(made):
    """Classes and shapes of the whole model."""
    with torch.device("meta"):
        model = made.build("model", vocab_size=8)
    return repr(model), {name: value.shape for name, value in model.state_dict().items()}


def test_a_package_that_a_saved_recipe_needs_is_named_with_its_pip_line(small):
    saved = recipe(small).saved()
    saved["versions"]["bakeoff-elsewhere"] = "1.2"
    saved["model"]["init_args"]["blocks"]["layer"]["init_args"]["mixer"] = {"class_path": "bakeoff_elsewhere.Idea"}
    with pytest.raises(RecipeError) as error:
        recipe(saved).check()
    assert "bakeoff_elsewhere.Idea cannot be imported" in str(error.value)
    assert "pip install 'bakeoff-elsewhere==1.2'" in str(error.value)


def round_trip(made):
    back = recipe(yaml.safe_load(yaml.safe_dump(made.saved(), sort_keys=False)))
    assert back.full == made.full
    assert back.hash() == made.hash()
    assert back.components() == made.components()
    parameters = [torch.nn.Parameter(torch.ones(1))]
    assert back.build("optimizer")(parameters).defaults == made.build("optimizer")(parameters).defaults
    assert described(back) == described(made)
    assert recipe(back.saved()).full == made.full


@pytest.mark.parametrize("name", MODELS)
def test_every_shipped_recipe_checks_and_comes_back(name):
    made = recipe(f"bakeoff:{name}")
    made.check().demands()
    round_trip(made)


def test_random_variants_come_back():
    draw = random.Random(0)
    choices = {
        "model.depth": [1, 3, 7],
        "model.d_model": [64, 128],
        "model.norm": [None, "{use: layer_norm}", "{use: rms_norm, eps: 1e-5}"],
        "model.embedding_scale": [1, 2.5],
        "model.tied_embedding": [True, False],
        "model.head": ["{use: vocabulary, soft_cap: 30}"],
        "model.blocks.layer.use": ["parallel", "post_norm", "sandwich_norm"],
        "model.blocks.layer.feed_forward": [None, "{use: mlp}", "{use: gated_mlp, activation: relu}"],
        "optimizer": [
            "{use: torch.optim.SGD, lr: 1e-1, momentum: 0.9}",
            "{use: torch.optim.AdamW, betas: [0.9, 0.99]}",
        ],
        "schedule": ["{use: warmup_stable_decay, warmup: 5}", "{use: constant}"],
        "seed": [3, "{data: 1}"],
        "objective": ["{use: causal, z_loss: 1e-4}"],
        "sampler": ["{use: sample, top_k: 5}"],
        "data.isolate_documents": [False],
        "trainer.max_steps": ["5e1"],
    }
    for _ in range(10):
        picked = draw.sample(sorted(choices), 5)
        lines = []
        for path in picked:
            value = draw.choice(choices[path])
            lines.append(
                f"{path}={'null' if value is None else str(value).lower() if isinstance(value, bool) else value}"
            )
        if "model.blocks.layer.use" in picked:
            lines += [
                "model.blocks.layer.mixer={use: attention, n_heads: 4}",
                "model.blocks.layer.feed_forward={use: mlp}",
            ]
        round_trip(recipe("bakeoff:models/transformer.yaml", lines))


def test_the_hash_is_of_what_decides_the_run(small, write):
    made = recipe(small)
    assert len(made.hash()) == 12
    assert made.hash() == recipe(small, ["name=other"]).hash()
    assert made.hash() == recipe(small, ["model.blocks.layer.mixer.qk_norm=null", "optimizer.lr=0.001"]).hash()
    assert made.hash() != recipe(small, ["seed=1"]).hash()
    swapped = small.read_text().replace("  d_model: 32\n  depth: 2\n", "  depth: 2\n  d_model: 32\n")
    assert recipe(write("swapped.yaml", swapped)).hash() == made.hash()


def test_components_are_named_with_those_of_defaults(small):
    assert {"attention", "auto", "pre_norm", "rms_norm", "decoder", "vocabulary", "causal"} <= set(
        recipe(small).components()
    )


def test_demands_name_part_demand_and_alternatives(small):
    made = recipe(small, ["model.blocks.layer.mixer={use: forgets_borders}"])
    with pytest.raises(CapabilityError) as error:
        made.demands()
    said = str(error.value)
    assert said.startswith("model.blocks.layer.mixer (override): forgets_borders does not claim `documents`, which")
    assert "data.isolate_documents: true demands" in said
    assert "mamba2" in said
    made.override(["data.isolate_documents=false"]).demands()


def test_what_a_constructor_refuses_is_told_with_its_path(small):
    with pytest.raises(RecipeError, match=r"model\.blocks\.layer\.mixer \(.*small\.yaml:8\): "):
        recipe(small, ["model.d_model=33"]).demands()


def test_a_recipe_is_not_changed_by_overriding_or_building(small):
    made = recipe(small)
    before = made.saved()
    made.override(["model.depth=9", "model.pattern=[layer, layer]"]).check()
    made.build("model", vocab_size=8)
    made.build("optimizer")
    assert made.saved() == before
    assert bakeoff.recipe(small).saved() == before
