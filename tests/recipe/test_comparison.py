"""Comparisons: arms as whole recipes, sections as strict as a recipe's."""

import pytest
from bakeoff.errors import RecipeError
from bakeoff.recipe import comparison, is_comparison, references

FILE = """\
base: small.yaml
arms:
  attention: {}
  narrow: {model.blocks.layer.mixer: {use: attention, window: 2}}
  mamba2: {model.blocks.layer.mixer: {use: mamba2, state_size: 16}}
  other: {extends: other.yaml, model.depth: 3}
match: {by: parameters, within: 0.02, adjust: feed_forward.width}
budget: {tokens: 5e6}
tune: {optimizer.init_args.lr: [1e-3, 3e-3]}
seeds: [0, 1, 2]
measure: [validation, throughput]
executor: {use: local, slots: 1}
"""
OTHER = """\
model:
  d_model: 48
  depth: 1
  pattern: [only]
  blocks:
    only: {use: pre_norm, mixer: {use: attention, n_heads: 2}, feed_forward: {use: mlp}}
seed: 7
"""


@pytest.fixture
def file(write, small, tmp_path, monkeypatch):
    """Write a comparison with text replaced."""
    monkeypatch.chdir(tmp_path)
    write("other.yaml", OTHER)

    def made(old="", new="", name="compared.yaml"):
        assert old in FILE
        return write(name, FILE.replace(old, new))

    return made


def test_sections(file):
    made = comparison(file())
    assert (made.name, list(made.arms)) == ("compared", ["attention", "narrow", "mamba2", "other"])
    assert (made.match.by, made.match.within, made.match.adjust) == ("parameters", 0.02, "feed_forward.width")
    assert made.budget.tokens == 5_000_000
    assert type(made.budget.tokens) is int
    assert made.tune == {"optimizer.lr": [0.001, 0.003]}
    assert made.seeds == [0, 1, 2]
    assert made.measure == ["validation", "throughput"]
    assert made.executor.slots == 1
    assert comparison({**made.sections, "base": "small.yaml", "arms": {"a": {}}}).sections == made.sections


def test_defaults(small):
    made = comparison({"base": str(small), "arms": {"a": None}, "budget": {"tokens": 10}})
    assert (made.match.by, made.tune, made.seeds, made.name) == ("none", {}, [0, 1, 2], "comparison")
    assert "validation" in made.measure


def test_arms_are_whole_recipes(file):
    arms = comparison(file()).arms
    mixers = {name: arm.tree["model"]["blocks"]["layer"]["mixer"] for name, arm in arms.items() if name != "other"}
    assert mixers["attention"] == {"use": "attention", "n_heads": 4, "window": 8}
    assert mixers["narrow"] == {"use": "attention", "n_heads": 4, "window": 2}
    assert mixers["mamba2"] == {"use": "mamba2", "state_size": 16}  # nothing of attention is carried over
    assert {name: arm.name for name, arm in arms.items()} == {name: name for name in arms}
    assert {arm.tree["data"]["length"] for arm in arms.values()} == {32}
    assert len({arm.hash() for arm in arms.values()}) == 4


def test_what_an_arm_extends_replaces_whole_sections(file):
    other = comparison(file()).arms["other"].tree
    assert list(other["model"]["blocks"]) == ["only"]
    assert (other["model"]["depth"], other["model"]["d_model"], other["seed"]) == (3, 48, 7)
    assert other["data"]["batch_tokens"] == 256  # what it does not speak of is the base's


def test_values_of_arms_name_their_arm(file):
    sources = comparison(file()).arms["mamba2"].sources
    assert sources["model.blocks.layer.mixer.use"] == "compared.yaml:5, arm mamba2"
    assert sources["model.blocks.layer.mixer.chunk"] == "default"
    assert sources["model.d_model"] == "small.yaml:2"


def test_overrides_reach_sections_arms_and_one_arm(file):
    changes = [
        "budget.tokens=1e3",
        "seeds=[5]",
        "model.d_model=64",
        "arms.mamba2.model.depth=9",
        "tune.model.depth=[2, 4]",
    ]
    made = comparison(file(), changes)
    assert (made.budget.tokens, made.seeds) == (1000, [5])
    assert {arm.tree["model"]["d_model"] for arm in made.arms.values()} == {64}
    assert {name: arm.tree["model"]["depth"] for name, arm in made.arms.items()} == {
        "attention": 2, "narrow": 2, "mamba2": 9, "other": 3,
    }  # fmt: skip
    assert made.tune == {"optimizer.lr": [0.001, 0.003], "model.depth": [2, 4]}
    assert comparison(file(), ["tune={}", "base.model.depth=1"]).tune == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "match: {by",
            "match: {bye",
            r"match\.bye \(compared\.yaml:7\): match has no argument 'bye'; did you mean 'by'",
        ),
        ("by: parameters", "by: paramters", r"match\.by .*did you mean 'parameters'"),
        ("within: 0.02", "within: '2 %'", r"match\.within .*takes a number"),
        ("adjust: feed_forward.width", "adjust: feed_forward.wdith", "nothing is called 'feed_forward.wdith'"),
        ("tokens: 5e6", "toknes: 5e6", "did you mean 'tokens'"),
        ("tokens: 5e6", "tokens: 5.5", "takes a whole number"),
        ("budget: {tokens: 5e6}\n", "", "comparison needs 'budget'"),
        ("seeds: [0, 1, 2]", "seeds: [0, 0]", "takes different whole numbers"),
        ("seeds: [0, 1, 2]", "seeds: []", "at least one"),
        ("seeds: [0, 1, 2]", "seeds: 3", r"seeds \(compared\.yaml:10\): takes a list"),
        ("seeds: [0, 1, 2]", "sedes: [0]", "a comparison has no section 'sedes'; did you mean 'seeds'"),
        (
            "measure: [validation",
            "measure: [validaton",
            "no measure or task is called 'validaton'; did you mean 'valid",
        ),
        ("slots: 1", "slts: 1", r"executor\.slts .*did you mean 'slots'"),
        ("use: local", "use: locl", "no executor is called 'locl'; did you mean 'local'"),
        ("init_args.lr: [1e-3", "init_args.lrr: [1e-3", r"optimizer\.lrr \(tune\).*did you mean 'lr'"),
        ("lr: [1e-3, 3e-3]", "lr: 1e-3", r"tune\.optimizer\.lr"),
        ("lr: [1e-3, 3e-3]", "lr: []", "is an empty list"),
        ("state_size: 16", "sate_size: 16", r"arm mamba2: .*mixer\.sate_size \(compared\.yaml:5, arm mamba2\)"),
        ("model.depth: 3", "model.dpth: 3", r"arm other: model\.dpth .*did you mean 'depth'"),
        ("model.depth: 3", "modle.depth: 3", "arm other: modle .*did you mean 'model'"),
        ("extends: other.yaml", "extends: none.yaml", "there is no such file"),
        ("base: small.yaml\n", "", "base: a comparison needs the recipe"),
        ("base: small.yaml", "base: nowhere.yaml", "nowhere.yaml: there is no such file"),
        ("attention: {}", "attention: 3", r"arms\.attention: is a mapping"),
        ("window: 2", "window: 2, window: 3", "stands twice"),
    ],
)
def test_slips(file, old, new, said):
    with pytest.raises(RecipeError, match=said):
        comparison(file(old, new))


def test_a_slip_of_the_base_is_told_once(file, small):
    small.write_text(small.read_text().replace("length", "lenght"))
    with pytest.raises(RecipeError) as error:
        comparison(file("  other: {extends: other.yaml, model.depth: 3}\n", ""))
    assert str(error.value).count("lenght") == 2  # the path, and the message


@pytest.mark.parametrize("change", ["arms={}", "base=small.yaml", "arms.mamba={}"])
def test_arms_and_base_stand_in_the_file(file, change):
    with pytest.raises(RecipeError, match=r"stands? in the file|set single values"):
        comparison(file(), [change])


def test_an_override_of_an_arm_that_is_none(file):
    with pytest.raises(RecipeError, match="there is no arm 'mamba'; did you mean 'mamba2'"):
        comparison(file(), ["arms.mamba.model.depth=3"])


def test_recipes_and_comparisons_are_told_apart(file, small):
    assert is_comparison(file())
    assert not is_comparison(small)
    with pytest.raises(RecipeError, match="has no arms, so it is no comparison; train a recipe with `bakeoff fit"):
        comparison(small)


def test_references_are_those_of_all_arms(file, small, tmp_path):
    assert {"mamba2", "attention", "gated_mlp", "rms_norm"} <= set(references(file()))
    assert "mamba2" not in references(small)
    with pytest.raises(RecipeError, match=r"holds no recipe\.yaml"):
        references(tmp_path)
