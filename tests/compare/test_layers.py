"""What layers told, as a comparison keeps it."""

from itertools import pairwise

from bakeoff.compare.layers import STEPS, kept, over_layers


def rows(steps):
    for step in steps:
        for layer in (0, 1):
            for index in (0, 1):
                yield {"step": step, "layer": layer, "name": "f.load", "index": index, "value": step + index / 4}
            yield {"step": step, "layer": layer, "name": "f.entropy", "index": None, "value": step / (layer + 1)}


def test_scalars_are_kept_by_step_and_vectors_of_the_last():
    assert kept(list(rows([10, 20]))) == {
        "steps": [10, 20],
        "series": {"0.f.entropy": [10.0, 20.0], "1.f.entropy": [5.0, 10.0]},
        "last": {"0.f.load": [20.0, 20.25], "1.f.load": [20.0, 20.25]},
    }
    assert kept([]) == {"steps": [], "series": {}, "last": {}}


def test_of_many_steps_some_are_kept_and_the_last():
    steps = kept(list(rows(range(1, 2 * STEPS + 2))))["steps"]
    assert len(steps) <= STEPS
    assert steps[-1] == 2 * STEPS + 1
    assert {b - a for a, b in pairwise(steps)} == {3}


def test_a_curve_over_layers_is_of_the_steps_that_all_seeds_have():
    curve = [{"step": step, "tokens": 64 * step} for step in (10, 20, 30)]
    first = {"steps": [10, 20], "series": {"0.f.x": [1.0, 2.0], "1.f.x": [3.0, None], "0.m.x": [9.0, 9.0]}}
    second = {"steps": [20, 30], "series": {"0.f.x": [4.0, 6.0], "1.f.x": [8.0, 8.0]}}
    points = over_layers([{"layers": first, "curve": curve}], ["f.x"])
    assert points == [
        {"step": 10, "tokens": 640, "mean": 2.0, "low": 1.0, "high": 3.0},
        {"step": 20, "tokens": 1280, "mean": 2.0, "low": 2.0, "high": 2.0},
    ]
    both = over_layers([{"layers": told, "curve": curve} for told in (first, second)], ["f.x"])
    assert both == [{"step": 20, "tokens": 1280, "mean": 3.0, "low": 3.0, "high": 3.0}]
    assert over_layers([{"curve": curve}], ["f.x"]) == []
    assert over_layers([], ["f.x"]) == []
