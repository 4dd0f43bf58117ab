"""`switch` against the router of transformers, and by hand."""

from functools import partial

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.needs import gather
from bakeoff_moe import MixtureOfExperts, Switch
from transformers import SwitchTransformersConfig
from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersTop1Router

D, E = 8, 8


def context(n_experts=E, d_model=D):
    return LayerContext(d_model=d_model, vocab_size=9, max_length=128, n_experts=n_experts)


def router(**arguments):
    made = Switch(context(), **arguments)
    initialise(made, seed=0)
    return made


def sequence_of(x, made, **described):
    return Sequence(torch.zeros(x.shape[:2], dtype=torch.long), **described).prepare(gather(made))


def inputs(B=3, T=16, seed=1):
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(seed))


def to_one_expert(made):
    """Every token whose first channel is positive chooses expert 3."""
    with torch.no_grad():
        made.scores.weight.zero_()[3, 0] = 5.0
    return made


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25])
def test_the_same_tokens_are_kept_with_the_same_weights_as_in_transformers(factor):
    made, x = router(capacity_factor=factor), inputs()
    capacity = {0.5: 1, 1.0: 2, 1.25: 3}[factor]  # ceil(16 / 8 * factor)
    config = SwitchTransformersConfig(hidden_size=D, num_experts=E, expert_capacity=capacity, router_jitter_noise=0.0)
    theirs = SwitchTransformersTop1Router(config)
    theirs.classifier.weight = made.scores.weight
    kept, weights, logits = theirs(x)
    got = made.route(x, sequence_of(x, made))
    taken = torch.nn.functional.one_hot(got.experts[:, 0], E + 1)[:, :E]
    assert torch.equal(taken.view(3, 16, E), kept)
    torch.testing.assert_close(got.weights.view(3, 16, 1), weights)
    torch.testing.assert_close(got.logits.view(3, 16, E), logits)
    assert 0 < taken.sum() < 48


def test_evaluation_has_no_limit():
    made, x = to_one_expert(router(capacity_factor=0.5)).eval(), inputs().abs()
    got = made.route(x, sequence_of(x, made))
    assert (got.experts == 3).all()


def test_all_tokens_to_one_expert_drop_seven_eighths_which_a_block_leaves_as_they_are():
    """T 128, E 8, factor 1: room for 16 of 128."""
    mixture = partial(
        MixtureOfExperts, n_experts=E, expert=partial(MLP, width=4), router=partial(Switch, capacity_factor=1.0)
    )
    block = PreNorm(context(None), mixer=None, feed_forward=mixture)
    initialise(block, seed=0)
    to_one_expert(block.feed_forward.router)
    x = inputs(B=1, T=128).abs()
    result = block(x, sequence_of(x, block))
    _, statistics = block.finish_aux(result.aux)
    assert statistics["feed_forward.dropped"].item() == 0.875
    assert statistics["feed_forward.unrouted"].item() == 0.875
    assert torch.equal(result.y[:, 16:], x[:, 16:])
    assert (result.y[:, :16] != x[:, :16]).any(-1).all()
    mixed = block.feed_forward(x, sequence_of(x, block)).y
    assert not mixed[:, 16:].any()


@pytest.mark.parametrize("left", [True, False])
def test_padding_takes_no_room(left):
    made = to_one_expert(router(capacity_factor=1.0))
    x = inputs(B=1, T=14).abs()
    real = torch.ones(1, 14, dtype=torch.bool)
    real[:, : 6 if left else None] = not left
    if not left:
        real[:, 8:] = False
    got = made.route(x, sequence_of(x, made, real=real)).experts[:, 0]
    alone = x[real][None]
    want = made.route(alone, sequence_of(alone, made)).experts[:, 0]
    assert torch.equal(got[real[0]], want)
    assert (want == 3).sum() == 1  # 8 tokens of 8 experts


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_room_for_less_than_one_token_is_refused(factor):
    with pytest.raises(ValueError, match=f"capacity_factor is {factor}, n_experts 8"):
        router(capacity_factor=factor)
