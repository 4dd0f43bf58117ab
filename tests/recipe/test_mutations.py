"""A recipe with a random slip: never a traceback, never silence."""

import copy
import random

import pytest
import yaml
from bakeoff.errors import RecipeError, UserError
from bakeoff.recipe import comparison, recipe

VALUES = [
    None, True, -1, 0, 7, 2.5, "4", "", "x y", [], [1, "a"], {}, {"a": {"b": 1}}, {"use": "mlp"}, {"use": 3}, "???",
    "${x}",
]  # fmt: skip
TEXTS = [
    "null", "true", "-1", "2.5", "x", "'4'", "[]", "[1, a]", "{}", "{use: mlp}", "{class_path: a.b}", "[", "${x}",
]  # fmt: skip


def told(action):
    """What an error of the user's was told with, or None; any other error is the test's."""
    try:
        action()
    except UserError as error:
        return str(error)
    return None


def places(value, path=()):
    """The paths of all values."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [inner for key, item in items for inner in places(item, (*path, key))]


def at(value, path):
    for key in path:
        value = value[key]
    return value


def misspelt(draw, key):
    """One letter doubled, dropped, or two swapped."""
    place = draw.randrange(1, len(key)) if len(key) > 1 else 0
    return draw.choice([key[:place] + key[place] + key[place:], key[:place] + key[place + 1 :], key + "_", key[::-1]])


def renamed(draw, tree):
    """The tree with one key of a section, or of anything inside, misspelt; and the path that had it."""
    keyed = [path for path in places(tree) if isinstance(path[-1], str) and path[:-1] != ("model", "blocks")]
    path = draw.choice(keyed)
    other = copy.deepcopy(tree)
    holder = at(other, path[:-1])
    word = misspelt(draw, path[-1])
    if word in holder or word == path[-1]:
        return renamed(draw, tree)
    holder[word] = holder.pop(path[-1])
    return other, ".".join(map(str, (*path[:-1], word)))


def test_a_misspelt_key_is_never_accepted(small):
    draw = random.Random(0)
    tree = recipe(small).full
    for _ in range(100):
        other, path = renamed(draw, tree)
        with pytest.raises(RecipeError) as error:
            recipe(other).check()
        assert path.rpartition(".")[2] in str(error.value)


def test_any_value_anywhere_is_taken_or_told(small):
    draw = random.Random(1)
    tree = yaml.safe_load(small.read_text())
    refused = 0
    for _ in range(200):
        other = copy.deepcopy(tree)
        path = draw.choice(places(tree))
        at(other, path[:-1])[path[-1]] = copy.deepcopy(draw.choice(VALUES))
        message = told(lambda other=other: recipe(other).check().saved())
        refused += message is not None
        assert message != ""
    assert refused > 100


def test_any_override_is_taken_or_told(small):
    draw = random.Random(2)
    made = recipe(small)
    written = [".".join(map(str, path)) for path in places(made.full)]
    for _ in range(200):
        path = draw.choice(written)
        path = draw.choice([path, f"{path}.more", f"{path}.0", misspelt(draw, path), f"{path}.use"])
        change = f"{path}={draw.choice(TEXTS)}"
        assert told(lambda change=change: made.override([change]).check()) != ""


def test_any_change_of_a_comparison_is_taken_or_told(small):
    draw = random.Random(3)
    tree = {
        "base": str(small),
        "arms": {"a": {}, "b": {"model.depth": 3}, "c": {"extends": str(small), "model.d_model": 16}},
        "match": {"by": "parameters", "within": 0.02, "adjust": "feed_forward.width"},
        "budget": {"tokens": 1000},
        "tune": {"optimizer.lr": [1e-3]},
        "seeds": [0, 1],
        "measure": ["validation"],
        "executor": {"use": "local", "slots": 1},
    }
    comparison(tree)
    for _ in range(40):
        other = copy.deepcopy(tree)
        path = draw.choice(places(tree))
        at(other, path[:-1])[path[-1]] = copy.deepcopy(draw.choice(VALUES))
        assert told(lambda other=other: comparison(other)) != ""
    for _ in range(10):
        other = copy.deepcopy(tree)
        key = draw.choice([key for key in other if key != "arms"])
        other[misspelt(draw, key)] = other.pop(key)
        with pytest.raises(RecipeError):
            comparison(other)
