"""`group_limited` against DeepSeek-V3's router in transformers."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff_moe import GroupLimited
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

D, E, T = 12, 64, 50


def router(n_experts=E, **arguments):
    made = GroupLimited(LayerContext(d_model=D, vocab_size=9, max_length=T, n_experts=n_experts), **arguments)
    initialise(made, seed=0)
    return made


@pytest.mark.parametrize("renormalise", [True, False])
def test_experts_and_weights_are_those_of_deepseek(renormalise):
    made = router(groups=8, groups_chosen=4, k=8, scale=2.5, renormalise=renormalise)
    g = torch.Generator().manual_seed(1)
    made.selection_bias.copy_(0.2 * torch.randn(E, generator=g))
    config = DeepseekV3Config(
        hidden_size=D,
        n_routed_experts=E,
        num_experts_per_tok=8,
        n_group=8,
        topk_group=4,
        norm_topk_prob=renormalise,
        routed_scaling_factor=2.5,
    )
    theirs = DeepseekV3TopkRouter(config)
    theirs.weight = made.scores.weight
    theirs.e_score_correction_bias = made.selection_bias
    x = torch.randn(2, T, D, generator=g)
    logits, weights, experts = theirs(x)
    got = made.route(x, Sequence(torch.zeros(2, T, dtype=torch.long)))
    theirs_order, order = experts.argsort(-1), got.experts.argsort(-1)
    assert torch.equal(got.experts.gather(-1, order), experts.gather(-1, theirs_order))
    torch.testing.assert_close(got.weights.gather(-1, order), weights.gather(-1, theirs_order))
    torch.testing.assert_close(got.logits, logits)
    free = (logits.sigmoid() + made.selection_bias).topk(8).indices.sort(-1).values
    assert not torch.equal(free, got.experts.gather(-1, order))  # the groups do limit the choice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 5, "groups_chosen": 2}, "groups is 5; it must divide n_experts, 8"),
        ({"groups": 8, "groups_chosen": 2}, "groups is 8; it must divide n_experts, 8, into groups of two or more"),
        ({"groups": 0, "groups_chosen": 1}, "groups is 0"),
        ({"groups": 4, "groups_chosen": 5}, "groups_chosen is 5, groups 4"),
        ({"groups": 4, "groups_chosen": 1, "k": 3}, "k is 3, but 1 of 4 groups have 2 of 8 experts"),
    ],
)
def test_groups_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        router(8, **arguments)
