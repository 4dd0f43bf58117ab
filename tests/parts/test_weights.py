"""Whether two sets of named weights agree, also where one has no values yet."""

import torch
from bakeoff.parts.weights import disagreements

THEIRS = {"a": torch.zeros(2), "b": torch.ones(2)}


def test_weights_on_the_meta_device_are_told_apart():
    with torch.device("meta"):
        apart, one = {"a": torch.empty(2), "b": torch.empty(2)}, torch.empty(2)
    assert disagreements(THEIRS, apart) == []
    assert disagreements(THEIRS, {"a": one, "b": one.detach()}) == ["b: differs from a there, is the same weight here"]
    assert disagreements({"a": THEIRS["a"], "b": THEIRS["a"].clone()}, {"a": one, "b": one.detach()}) == []


def test_views_of_one_memory_are_weights_of_their_own():
    both = torch.zeros(4)
    assert disagreements(THEIRS, {"a": both[:2], "b": both[2:]}) == []
    assert disagreements(THEIRS, {"a": both[:2], "b": both[:2]}) == ["b: differs from a there, is the same weight here"]
