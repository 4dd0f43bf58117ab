"""Sparse layers of `transformers`, with the same weights: equal outputs and gradients."""

from functools import partial

import pytest
import torch
import transformers
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.name_map import NameMap, Weights
from bakeoff.parts.needs import gather
from bakeoff_moe import BiasBalanced, ClampedGLU, GroupLimited, MixtureOfExperts, Switch, TopK
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

D, WIDTH, E, B, T = 12, 10, 8, 3, 13


def switch_layer(room):
    """Room for so many tokens of a row: of 13 over 8 experts, a factor of 8 / 13 is room for one."""
    config = transformers.SwitchTransformersConfig(
        d_model=D, d_ff=WIDTH, num_experts=E, expert_capacity=room, router_jitter_noise=0.0, dropout_rate=0.0
    )
    ours = partial(
        MixtureOfExperts,
        expert=partial(MLP, width=WIDTH, activation="relu"),
        router=partial(Switch, capacity_factor=room * E / T),
    )
    names = {
        "router": Weights("router.classifier", "router.scores"),
        "up": Weights("experts.expert_#.wi", "experts.up"),
        "down": Weights("experts.expert_#.wo", "experts.down"),
    }
    return SwitchTransformersSparseMLP(config), ours, names


def deepseek_layer(groups, chosen):
    config = transformers.DeepseekV3Config(
        hidden_size=D,
        moe_intermediate_size=WIDTH,
        n_routed_experts=E,
        num_experts_per_tok=3,
        n_group=groups,
        topk_group=chosen,
        n_shared_experts=2,
    )
    limited = partial(GroupLimited, groups=groups, groups_chosen=chosen)
    ours = partial(
        MixtureOfExperts,
        expert=partial(GatedMLP, width=WIDTH),
        shared=partial(GatedMLP, width=2 * WIDTH),
        router=partial(limited if groups > 1 else BiasBalanced, k=3, scale=2.5),
    )
    names = {
        "router": Weights("gate", "router.scores"),
        "bias": Weights("gate.e_score_correction_bias", "router.selection_bias"),
        "both": Weights("experts.gate_up_proj", ["experts.gate.weight", "experts.up.weight"], stacked=True),
        "down": Weights("experts.down_proj", "experts.down.weight", stacked=True),
        "shared_gate": Weights("shared_experts.gate_proj", "shared.gate"),
        "shared_up": Weights("shared_experts.up_proj", "shared.up"),
        "shared_down": Weights("shared_experts.down_proj", "shared.down"),
    }
    return DeepseekV3MoE(config), ours, names


def gpt_oss_layer(limit):
    config = transformers.GptOssConfig(
        hidden_size=D, intermediate_size=WIDTH, num_local_experts=E, num_experts_per_tok=4, swiglu_limit=limit
    )
    ours = partial(
        MixtureOfExperts,
        expert=partial(ClampedGLU, width=WIDTH, limit=limit),
        router=partial(TopK, k=4, softmax="after", bias=True),
    )
    both, biases = ([f"experts.{name}.{kind}" for name in ("gate", "up")] for kind in ("weight", "bias"))
    names = {
        "router": Weights("router", "router.scores"),
        "both": Weights("experts.gate_up_proj", both, transposed=True, groups=WIDTH, stacked=True),
        "biases": Weights("experts.gate_up_proj_bias", biases, groups=WIDTH, stacked=True),
        "down": Weights("experts.down_proj", "experts.down.weight", transposed=True, stacked=True),
        "down_bias": Weights("experts.down_proj_bias", "experts.down.bias", stacked=True),
    }
    return GptOssMLP(config), ours, names


LAYERS = {
    "switch": partial(switch_layer, T),
    "switch that drops": partial(switch_layer, 1),
    "DeepSeek-V3": partial(deepseek_layer, 4, 2),
    "DeepSeek-V3 without groups": partial(deepseek_layer, 1, 1),
    "GPT-OSS": partial(gpt_oss_layer, 7.0),
    "GPT-OSS at its limits": partial(gpt_oss_layer, 0.5),
}


@pytest.fixture(params=LAYERS)
def layers(request):
    """Their layer and ours, in training mode, with the same random weights; and the map between them."""
    theirs, ours, names = LAYERS[request.param]()
    generator = torch.Generator().manual_seed(3)
    for tensor in theirs.state_dict().values():
        scale = 0.2 if tensor.ndim == 1 else 1.5 / tensor.shape[-1] ** 0.5
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    made = ours(LayerContext(d_model=D, max_length=T, vocab_size=1), n_experts=E)
    table = NameMap(weights=names)
    made.load_state_dict(table.to_ours(theirs.state_dict(), made))
    return theirs.train(), made.train(), table


def sequence(layer):
    return Sequence(torch.zeros(B, T, dtype=torch.long)).prepare(gather(layer))


def inputs():
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(4)).requires_grad_()


def output(layer, x):
    if isinstance(layer, MixtureOfExperts):
        return layer(x, sequence(layer)).y
    y = layer(x)
    return y[0] if isinstance(y, tuple) else y


def test_outputs(layers):
    theirs, ours, _ = layers
    expected = output(theirs, inputs())
    assert expected.std() > 0.1
    torch.testing.assert_close(output(ours, inputs()), expected, atol=2e-5, rtol=1e-4)


def test_gradients(layers):
    theirs, ours, table = layers
    weights = torch.randn(B, T, D, generator=torch.Generator().manual_seed(5))
    x, y = inputs(), inputs()
    (output(theirs, x) * weights).sum().backward()
    (output(ours, y) * weights).sum().backward()
    torch.testing.assert_close(y.grad, x.grad, atol=2e-5, rtol=1e-4)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(parameter.grad)
    found = table.to_theirs(ours)
    for name, parameter in theirs.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found[name], expected, atol=2e-5, rtol=1e-4, msg=name)


def test_a_token_without_room_gets_nothing():
    theirs, ours, names = switch_layer(1)
    made = ours(LayerContext(d_model=D, max_length=T, vocab_size=1), n_experts=E)
    made.load_state_dict(NameMap(weights=names).to_ours(theirs.state_dict(), made))
    x = inputs().detach()[:, :1].repeat(1, T, 1)  # all tokens of a row are one, and want one expert
    y = made.train()(x, sequence(made)).y
    assert y[:, 0].abs().min() > 0
    assert not y[:, 1:].any()
    torch.testing.assert_close(y, theirs(x), atol=2e-5, rtol=1e-4)
