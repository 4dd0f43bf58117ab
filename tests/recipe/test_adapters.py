"""The section `adapters`: what it holds, what it lets be trained, and what it refuses."""

import bakeoff
import pytest
from bakeoff.cli.main import main
from bakeoff.errors import RecipeError
from bakeoff.evaluate.tasks.small import small as made_small
from bakeoff.parts.adapters import has_adapters
from bakeoff.recipe import comparison, recipe, references
from bakeoff.recipe.demands import outlined
from bakeoff.recipe.files import shipped

LAYERS = [f"{part}.{name}" for part, names in {
    "mixer": ("query", "key", "value", "output"), "feed_forward": ("gate", "up", "down")
}.items() for name in names]  # fmt: skip


def trained(made):
    model = made.build("model", vocab_size=40)
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def adapters_of(layers):
    return {
        f"backbone.blocks.{i}.{layer}.adapter.{f}.weight" for i in (0, 1) for layer in layers for f in ("up", "down")
    }


def test_only_adapters_are_trained_and_what_else_is_named(extended):
    assert trained(extended("adapters: {}")) == adapters_of(LAYERS)
    both = extended("adapters: {roles: [output]}\ntrained: ['*_norm.weight']")
    norms = {f"backbone.blocks.{i}.{part}_norm.weight" for i in (0, 1) for part in ("mixer", "feed_forward")}
    assert trained(both) == adapters_of(["mixer.output", "feed_forward.down"]) | norms


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama_7b", 32 * 8 * (4 * 2 * 4096 + 3 * (4096 + 11008))),  # 19,988,480, as `peft` counts r = 8 on all layers
        ("llama3_8b", 32 * 8 * (2 * 2 * 4096 + 2 * (4096 + 1024) + 3 * (4096 + 14336))),
    ],
)
def test_a_published_model_has_the_published_number(name, count):
    model = outlined(recipe(shipped() / "models" / f"{name}.yaml", {"adapters": {"rank": 8}}), 128)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == count


def test_a_saved_recipe_says_all_of_it_and_builds_the_same(extended, tmp_path):
    made = extended("adapters: {rank: 3, on: ['*.mixer.*']}")
    assert made.saved()["adapters"] == {"rank": 3, "scale": 2.0, "on": ["*.mixer.*"], "roles": None, "dropout": 0.0}
    again = recipe(made.saved())
    assert again.hash() == made.hash()
    assert trained(again) == trained(made) == adapters_of(LAYERS[:4])


def test_values_are_set_by_path(small):
    assert recipe(small, ["adapters.rank=4"]).tree["adapters"] == {"rank": 4}
    assert not has_adapters(recipe(small, ["adapters=null"]).build("model", vocab_size=40))


def test_a_recipe_without_them_keeps_its_hash_and_one_with_them_has_another(small):
    plain = recipe(small)
    without = {key: value for key, value in plain.tree.items() if key != "adapters"}
    hashes = [bakeoff.recipe(without).hash(), *(recipe(small, {"adapters": {"rank": r}}).hash() for r in (2, 3))]
    assert plain.hash() == hashes[0]
    assert len(set(hashes)) == 3


WRONG = {
    "{rank: 0}": "rank is 0; it must be at least 1",
    "{rank: 2.5}": "takes a whole number, not 2.5",
    "{rnk: 4}": "adapters has no argument 'rnk'; did you mean 'rank'?",
    "{dropout: 2.0}": "dropout is 2.0; it must lie in 0 <= dropout < 1",
    "{on: []}": "on is empty, so nothing would be adapted",
    "8": "takes a mapping (rank, scale, on, roles, …), not 8",
    "{on: ['*.mixr.query']}": "no name matches '*.mixr.query'; the nearest are backbone.blocks.*.mixer.query",
    "{on: ['head.*']}": "head.projection shares its weight with backbone.embed",
    "{on: ['*.mixer_norm']}": "backbone.blocks.0.mixer_norm is no learned product: its role is vector",
    "{roles: [gate]}": "of what is chosen nothing has role 'gate'; there are hidden, output",
}


@pytest.mark.parametrize("section", WRONG)
def test_what_is_wrong_is_told_with_its_line(extended, section, capsys):
    with pytest.raises(RecipeError) as error:
        extended(f"adapters: {section}").demands()
    assert WRONG[section] in str(error.value)
    assert "child.yaml:2" in str(error.value)
    assert main(["check", str(extended(f"adapters: {section}").path)]) == 2
    assert WRONG[section] in capsys.readouterr().err


def test_products_in_float8_have_none(extended):
    with pytest.raises(RecipeError, match=r"trainer.fp8: true replaces linear layers, which adapters change too"):
        extended("adapters: {}\ntrainer: {fp8: true}").demands()


def test_the_paper_is_cited(extended, small):
    assert references(extended("adapters: {}").path)["adapters"].authors == "Hu et al."
    assert "adapters" not in references(small)


def test_an_arm_of_a_comparison_has_them(write, small):
    text = f"base: {small}\narms:\n  whole: {{}}\n  low_rank: {{adapters: {{rank: 2}}}}\nbudget: {{tokens: 1e3}}\n"
    arms = comparison(write("arms.yaml", text)).arms
    assert {name: has_adapters(arm.build("model", vocab_size=40)) for name, arm in arms.items()} == {
        "whole": False,
        "low_rank": True,
    }


def test_a_small_model_of_the_same_mixers_has_none(extended):
    assert made_small(extended("adapters: {}"), d_model=16, depth=1).tree["adapters"] is None
