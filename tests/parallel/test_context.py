"""Ranks that share out the tokens of rows: losses, statistics and gradients are those of one process on whole rows."""

from pathlib import Path

import pytest
from bakeoff.interfaces.spans import ORDERS
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_context.py")
ATTENTION = {"use": "attention", "n_heads": 4, "n_kv_heads": 2, "position": {"use": "rope"}}
GPT = {"layer": {"use": "pre_norm", "mixer": ATTENTION, "feed_forward": {"use": "gated_mlp", "width": 8}}}
DROPPING = {"layer": {**GPT["layer"], "dropout": 0.1}}


def run(name, ranks=2, **arguments):
    shared_ranks(ranks).run(CASES, name, **arguments)


@pytest.mark.parametrize("order", ORDERS)
def test_a_token_counts_the_same_wherever_it_stands(order):
    run("mean_of_unequal_ranks", order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_to_learn(order):
    run("nothing_to_learn", order=order)


@pytest.mark.parametrize("op", ["ring", "ulysses"])
def test_losses_and_gradients_are_those_of_whole_rows(op):
    run("shared_rows_equal_whole", blocks=GPT, order="zigzag", op=op)


@pytest.mark.parametrize(("order", "real"), [("zigzag", (4, 9)), ("contiguous", (7, 13)), ("contiguous", (0, 6))])
def test_a_rank_without_targets(order, real):
    run("shared_rows_equal_whole", blocks=GPT, order=order, real=real)


def test_dropout_does_not_depend_on_who_has_which_tokens():
    run("shared_rows_equal_whole", blocks=DROPPING, order="zigzag", dropout=0.1)


def test_an_embedding_of_its_own_and_absolute_positions():
    position = {"use": "learned_position"}
    run("shared_rows_equal_whole", blocks=GPT, order="contiguous", tied_embedding=False, position=position)
