"""Layers: extends, overrides, interpolation."""

import pytest
from bakeoff.errors import RecipeError
from bakeoff.recipe import recipe
from bakeoff.recipe.files import shipped

MIXER = "model.blocks.layer.mixer"


def mixer(made):
    return made.tree["model"]["blocks"]["layer"]["mixer"]


def test_mappings_merge_and_the_later_file_wins(extended):
    tree = extended("model: {depth: 3, blocks: {layer: {mixer: {window: 4}}}}\n").tree["model"]
    assert tree["depth"] == 3
    assert tree["d_model"] == 32
    assert tree["blocks"]["layer"]["mixer"] == {"use": "attention", "n_heads": 4, "window": 4}


def test_several_parents_the_later_wins(write, small):
    write("a.yaml", "model: {d_model: 64}\nseed: 1\n")
    write("b.yaml", "model: {d_model: 128}\n")
    made = recipe(write("c.yaml", f"extends: [{small}, a.yaml, b.yaml]\n"))
    assert made.tree["model"]["d_model"] == 128
    assert made.tree["seed"] == 1


def test_a_circle_names_its_chain(write, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write("a.yaml", "extends: b.yaml\n")
    write("b.yaml", "extends: [c.yaml]\n")
    write("c.yaml", "extends: a.yaml\n")
    with pytest.raises(RecipeError, match=r"circle: a\.yaml -> b\.yaml -> c\.yaml -> a\.yaml"):
        recipe("a.yaml")
    write("self.yaml", "extends: self.yaml\n")
    with pytest.raises(RecipeError, match=r"circle: self\.yaml -> self\.yaml"):
        recipe("self.yaml")


def test_the_same_parent_by_two_ways_is_no_circle(write, small):
    write("left.yaml", f"extends: {small}\nseed: 1\n")
    write("right.yaml", f"extends: {small}\ncompile: true\n")
    made = recipe(write("both.yaml", "extends: [left.yaml, right.yaml]\n"))
    assert made.tree["compile"] is True


def test_a_missing_parent_is_named_with_its_place(write):
    with pytest.raises(RecipeError, match=r"extends \(.*a\.yaml:2\): there is no file .*nowhere\.yaml"):
        recipe(write("a.yaml", "seed: 1\nextends: nowhere.yaml\n"))
    with pytest.raises(RecipeError, match="is a file or a list of files"):
        recipe(write("b.yaml", "extends: {a: 1}\n"))


def test_shipped_recipes_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe("bakeoff:models/transformer.yaml").name == "transformer"
    with pytest.raises(RecipeError, match=r"no such recipe is shipped; there are: .*models/transformer\.yaml"):
        recipe("bakeoff:models/none.yaml")
    with pytest.raises(RecipeError, match="no such recipe is shipped"):
        recipe("bakeoff:../pyproject.toml")
    assert (shipped() / "models/transformer.yaml").is_file()


# a changed class takes nothing of the old one along, not even arguments of the same name
def test_another_class_drops_the_arguments_of_the_old_one(small):
    made = recipe(small, [f"{MIXER}.use=mamba2", f"{MIXER}.state_size=16"])
    assert mixer(made) == {"use": "mamba2", "state_size": 16}
    back = made.override([f"{MIXER}.use=attention", f"{MIXER}.n_heads=2"])
    assert mixer(back) == {"use": "attention", "n_heads": 2}
    assert back.full["model"]["blocks"]["layer"]["mixer"]["window"] is None


def test_an_argument_of_the_same_name_is_not_carried_over(small):
    made = recipe(small, ["model.blocks.layer.feed_forward={use: mlp}"])
    assert made.tree["model"]["blocks"]["layer"]["feed_forward"] == {"use": "mlp"}


def test_the_order_of_overrides_does_not_matter(small):
    one = recipe(small, [f"{MIXER}.use=mamba2", f"{MIXER}.state_size=16"])
    two = recipe(small, [f"{MIXER}.state_size=16", f"{MIXER}.use=mamba2"])
    assert one.tree == two.tree


def test_the_same_class_keeps_its_siblings(small):
    made = recipe(small, [f"{MIXER}={{use: attention, window: 2}}"])
    assert mixer(made) == {"use": "attention", "n_heads": 4, "window": 2}
    assert mixer(recipe(small, [f"{MIXER}.use=attention"])) == {"use": "attention", "n_heads": 4, "window": 8}


# one field set leaves its siblings as they were
def test_one_field_leaves_its_siblings(small):
    made = recipe(small, ["optimizer.lr=1e-2", "validation.tokens=100"])
    assert made.full["optimizer"]["betas"] == [0.9, 0.999]
    assert made.tree["optimizer"]["lr"] == 0.01
    assert made.tree["validation"] == {"every_steps": None, "tokens": 100}


def test_another_optimizer_does_not_inherit_the_default_rate(small):
    with pytest.raises(RecipeError, match="has no argument 'betas'"):
        recipe(small, ["optimizer={class_path: torch.optim.SGD, init_args: {betas: [0.9, 0.9]}}"]).check()
    made = recipe(small, ["optimizer={class_path: torch.optim.SGD, init_args: {momentum: 0.9}}"])
    assert made.full["optimizer"]["lr"] == 1e-3  # SGD's own default


def test_long_and_short_form_are_one(small):
    long = recipe(small, ["optimizer.init_args.lr=2e-3", "optimizer.class_path=torch.optim.AdamW"])
    assert long.tree == recipe(small, ["optimizer.lr=2e-3"]).tree
    node = "{class_path: bakeoff_ssm.Mamba2, init_args: {state_size: 16}}"
    assert mixer(recipe(small, [f"{MIXER}={node}"])) == {"use": "mamba2", "state_size": 16}
    assert mixer(recipe(small, [f"{MIXER}.class_path=bakeoff_ssm.Mamba2"])) == {"use": "mamba2"}


def test_both_forms_in_one_node_are_an_error(small):
    for node in ("{class_path: x.Y, window: 3}", "{use: attention, init_args: {n_heads: 2}}"):
        with pytest.raises(RecipeError, match="stands beside class_path and init_args"):
            recipe(small, [f"{MIXER}={node}"])
    with pytest.raises(RecipeError, match="init_args is a mapping"):
        recipe(small, [f"{MIXER}={{class_path: x.Y, init_args: [1]}}"])


def test_list_entries_are_set_by_index(small):
    made = recipe(small, ["optimizer.betas=[0.9, 0.99]"]).override(["optimizer.betas.1=0.95"])
    assert made.tree["optimizer"]["betas"] == [0.9, 0.95]
    with pytest.raises(RecipeError, match=r"optimizer\.betas is a list of 2; its places are 0, 1, not '2'"):
        made.override(["optimizer.betas.2=0.5"])
    with pytest.raises(RecipeError, match="is a list of 1; its places are 0, not 'first'"):
        made.override(["model.pattern.first=layer"])


@pytest.mark.parametrize("text", ["model.depth", "=3", "model..depth=3", ".=3"])
def test_an_override_that_is_none(small, text):
    with pytest.raises(RecipeError, match=r"is written path=value, as in model\.depth=12"):
        recipe(small, [text])


def test_override_values_are_yaml(small):
    made = recipe(small, {"model.depth": 5}).override("optimizer.lr=3e-4")
    assert (made.tree["model"]["depth"], made.tree["optimizer"]["lr"]) == (5, 0.0003)
    with pytest.raises(RecipeError, match=r"override 'model\.depth=\[': *.*is not YAML"):
        recipe(small, ["model.depth=["])
    with pytest.raises(RecipeError, match=r"model\.depth \(override\): takes a whole number, not '4'"):
        recipe(small, ["model.depth='4'"]).check()


def test_keys_with_dots_are_refused_in_a_file(write):
    with pytest.raises(RecipeError, match=r"model\.depth \(.*a\.yaml:1\): 'model\.depth' is no key"):
        recipe(write("a.yaml", "model.depth: 3\n"))


def test_interpolation_follows_overrides(extended):
    made = extended("model: {blocks: {layer: {feed_forward: {width: '${model.d_model}'}}}}\n")
    assert made.override(["model.d_model=48"]).tree["model"]["blocks"]["layer"]["feed_forward"]["width"] == 48


def test_an_interpolated_node_can_be_changed_alone(extended):
    made = extended("model: {blocks: {other: '${model.blocks.layer}'}, pattern: [layer, other]}\n")
    blocks = made.override(["model.blocks.other.mixer.window=2"]).tree["model"]["blocks"]
    assert blocks["other"]["mixer"] == {"use": "attention", "n_heads": 4, "window": 2}
    assert blocks["layer"]["mixer"]["window"] == 8


@pytest.mark.parametrize(
    "value", ["${oc.env:HOME}", "${oc.decode:x}", "${${seed}:HOME}", "${model.${seed}}", "${'a'}", "x${env:A,b}"]
)
def test_interpolations_that_run_or_read_the_environment_are_refused(extended, value):
    with pytest.raises(RecipeError):
        extended(f'name: "{value}"\n')


def test_interpolations_in_a_circle_or_to_nothing(extended):
    with pytest.raises(RecipeError, match="circle"):
        extended("name: ${model.x}\nmodel: {x: '${name}'}\n")
    with pytest.raises(RecipeError, match=r"name \(.*child\.yaml:2\).*nothing\.here"):
        extended("name: ${nothing.here}\n")


def test_interpolations_that_grow_without_bound_are_refused(extended):
    lines = ["  a0: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [
        f"  a{i}: [{', '.join([f'${{data.a{i - 1}}}'] * 10)}]".replace("${", "'${").replace("}", "}'")
        for i in range(1, 9)
    ]
    with pytest.raises(RecipeError, match="writes out to more than"):
        extended("data:\n" + "\n".join(lines) + "\n")


def test_values_of_a_notebook(small):
    import numpy as np

    made = recipe(small, {"optimizer.lr": np.float32(0.5), "model.depth": np.int64(3), "optimizer.betas": (0.9, 0.99)})
    assert made.tree["optimizer"]["lr"] == 0.5
    assert type(made.tree["model"]["depth"]) is int
    assert made.tree["optimizer"]["betas"] == [0.9, 0.99]


def test_a_recipe_from_a_mapping(small):
    made = recipe({"extends": str(small), "model": {"depth": 7}})
    assert (made.tree["model"]["depth"], made.name, made.path) == (7, "recipe", None)
