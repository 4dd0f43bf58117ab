import pytest
from bakeoff import registry
from bakeoff.compare.matching import costs_of, match, nearest
from bakeoff.errors import UserError
from bakeoff.recipe import comparison
from bakeoff.recipe.comparing import Match

WIDTH = "feed_forward.width"


def asked(measure, target, within=0.02):
    """The result of `nearest`, and how often it asked."""
    calls = []

    def counted(n):
        calls.append(n)
        return measure(n)

    return nearest(counted, target, within), len(calls)


@pytest.mark.parametrize("target", [800.0, 8000.0, 123_456.0])
def test_nearest_is_a_multiple_of_eight_where_one_is_near_enough(target):
    (value, reached), calls = asked(lambda n: 10 * n, target)
    assert value % 8 == 0
    assert abs(reached - target) == min(abs(10 * n - target) for n in range(8, 20_000, 8))
    assert calls < 60


def test_nearest_is_any_number_where_multiples_of_eight_are_too_coarse():
    assert nearest(lambda n: 100 * n, 1900.0, 0.01) == (19, 1900)
    assert nearest(lambda n: 100 * n, 240.0, 0.01) == (2, 200)


def test_nearest_never_goes_below_one():
    assert nearest(lambda n: 1000 + n, 10.0, 0.01) == (1, 1001)


def test_attention_with_one_key_head_is_widened_by_what_its_projections_lost(tiny):
    # keys and values: 2 x 16 x 16 weights become 2 x 16 x 8; an MLP without biases costs 2 x 16 a unit of width
    tiny["arms"]["one_head"] = {"model.blocks.layer.mixer.n_kv_heads": 1}
    arms = comparison(tiny).arms
    target = costs_of(arms["attention"], 257).parameters.without_embeddings
    recipe, matched = match("one_head", arms["one_head"], Match(by="parameters", adjust=WIDTH), target, 257)
    assert (matched.value, matched.reached) == (32 + 256 // 32, target)
    assert recipe.tree["model"]["blocks"]["layer"]["feed_forward"]["width"] == 40


def test_every_block_that_has_the_setting_is_adjusted_alike(tiny):
    layer = tiny["base"]["model"]["blocks"]["layer"]
    tiny["base"]["model"] |= {"depth": 2, "pattern": ["a", "b"], "blocks": {"a": layer, "b": layer}}
    tiny["arms"] = {"attention": {}, "one_head": {f"model.blocks.{b}.mixer.n_kv_heads": 1 for b in "ab"}}
    arms = comparison(tiny).arms
    target = costs_of(arms["attention"], 257).parameters.without_embeddings
    recipe, _ = match("one_head", arms["one_head"], Match(by="parameters", adjust=WIDTH), target, 257)
    assert [recipe.tree["model"]["blocks"][b]["feed_forward"]["width"] for b in "ab"] == [40, 40]


def test_an_equal_arm_is_left_as_it_stands(tiny):
    arms = comparison(tiny).arms
    target = costs_of(arms["attention"], 257).parameters.without_embeddings
    recipe, matched = match("window", arms["window"], Match(by="parameters", adjust=WIDTH), target, 257)
    assert recipe is arms["window"]
    assert (matched.value, matched.error) == (None, 0.0)


def test_by_flops_a_window_is_given_back_as_width(tiny):
    arms = comparison(tiny).arms
    target = costs_of(arms["attention"], 257).whole.flops
    _, matched = match("window", arms["window"], Match(by="flops", within=0.05, adjust=WIDTH), target, 257)
    assert matched.value > 32
    assert abs(matched.error) <= 0.05


CHOSEN = """
import torch
from bakeoff import register
from bakeoff.parts.feed_forwards.mlp import MLP


@register("half_idle")
class HalfIdle(MLP):
    def idle(self):
        return sum(parameter.numel() for parameter in self.parameters()) // 2
"""


def test_by_active_parameters_twice_the_width_is_half_idle(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    (tmp_path / "half_idle.py").write_text(CHOSEN)
    tiny["imports"] = [str(tmp_path / "half_idle.py")]
    tiny["arms"]["sparse"] = {"model.blocks.layer.feed_forward": {"use": "half_idle", "width": 32}}
    arms = comparison(tiny).arms
    target = costs_of(arms["attention"], 257).parameters.active_without_embeddings
    rule = Match(by="active_parameters", adjust=WIDTH)
    recipe, matched = match("sparse", arms["sparse"], rule, target, 257)
    assert (matched.value, matched.reached) == (64, target)
    assert costs_of(recipe, 257).parameters.without_embeddings == target + 2 * 16 * 32


def test_by_state_the_setting_may_be_the_window(tiny):
    arms = comparison(tiny).arms
    target = 0.5 * costs_of(arms["attention"], 257).whole.state
    _, matched = match("window", arms["window"], Match(by="state", adjust="mixer.window"), target, 257)
    assert matched.value == 16


def test_out_of_reach_names_arm_both_numbers_and_the_nearest(tiny):
    arms = comparison(tiny).arms
    rule = Match(by="parameters", within=0.01, adjust=WIDTH)
    own = costs_of(arms["window"], 257).parameters.without_embeddings
    with pytest.raises(UserError) as error:
        match("window", arms["window"], rule, 300, 257)
    least = own - 31 * 32
    for word in ("arm window", f"{least:,}", "300", f"{WIDTH} = 1", "1 %"):
        assert word in str(error.value)


def test_an_arm_without_the_setting_is_told_so(tiny):
    arms = comparison(tiny).arms
    with pytest.raises(UserError, match="nothing in the arm is called 'd_state'"):
        match("window", arms["window"], Match(by="parameters", adjust="d_state"), 1, 257)
    with pytest.raises(UserError, match=r"name the setting that may be adjusted"):
        match("window", arms["window"], Match(by="parameters"), 1, 257)
