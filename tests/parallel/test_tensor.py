"""Tensor parallelism: ranks that work on a model together compute what one process does."""

from pathlib import Path

import pytest
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_tensor.py")
ATTENTION = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
GPT = {"layer": {"use": "pre_norm", "mixer": ATTENTION, "feed_forward": {"use": "gated_mlp", "width": 24}}}
#: Every option of attention and of the vocabulary's head, biases, dropout and a position on embeddings.
OPTIONS = {"qk_norm": "head", "soft_cap": 5.0, "output_gate": True, "sinks": True, "bias": True, "output_bias": True}
GROUPED = {**ATTENTION, "n_heads": 8, "n_kv_heads": 4, "head_width": 2, "window": 3, **OPTIONS}
NORMED = {**ATTENTION, "qk_norm": "whole", "position": {"use": "alibi"}}
TABLED = {**ATTENTION, "position": {"use": "t5_position", "buckets": 4, "max_distance": 6}}
MLP = {"use": "mlp", "width": 24, "bias": True}
ALL = {
    "grouped": {"use": "parallel", "mixer": GROUPED, "feed_forward": MLP, "dropout": 0.2},
    "normed": {"use": "sandwich_norm", "mixer": NORMED, "feed_forward": MLP, "dropout": 0.2},
    "tabled": {"use": "post_norm", "mixer": TABLED, "feed_forward": None, "dropout": 0.2},
}
EVERYTHING = {
    "blocks": ALL,
    "depth": 4,
    "head": {"use": "vocabulary", "scale": 0.5, "soft_cap": 5.0, "bias": True},
    "position": {"use": "learned_position"},
    "embedding_norm": {"use": "layer_norm"},
    "embedding_scale": 2.0,
    "dropout": 0.2,
    "objective": {"z_loss": 0.1, "label_smoothing": 0.1},
}


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["stream_whole", "stream_shared_out"])
@pytest.mark.parametrize(
    "model",
    [{"blocks": GPT}, {"blocks": GPT, "tied_embedding": False, "length": 3}, EVERYTHING],
    ids=["tied", "untied", "everything"],
)
def test_loss_and_gradients_are_those_of_one_process(n, sequence_parallel, model):
    """With a vocabulary and tokens that the ranks do not divide."""
    shared_ranks(n).run(CASES, "share_equals_whole", sequence_parallel=sequence_parallel, **model)


def test_logits_and_decoding_are_those_of_one_process():
    shared_ranks(2).run(CASES, "logits_equal", **{k: v for k, v in EVERYTHING.items() if k != "objective"})


def test_a_share_is_drawn_as_that_of_the_whole():
    model = {k: v for k, v in EVERYTHING.items() if k != "objective"}
    shared_ranks(4).run(CASES, "share_is_drawn_as_of_the_whole", **model)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(("before", "equal"), [(True, True), (False, False)], ids=["sum_first", "nonlinearity_first"])
def test_rows_first_without_a_sum_before_the_nonlinearity_is_another_function(n, before, equal):
    """GELU(X1 A1 + X2 A2) is not GELU(X1 A1) + GELU(X2 A2)."""
    shared_ranks(n).run(CASES, "rows_first", before=before, equal=equal)
