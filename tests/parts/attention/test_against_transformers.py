"""Attention of published models, as `transformers` has it: the same weights give the same outputs and gradients."""

from functools import partial

import pytest
import torch
from bakeoff.parts.attention.banded import Banded
from bakeoff.parts.attention.sdpa import SDPA
from bakeoff.parts.norms import ZeroCentredRMSNorm
from bakeoff.parts.positions.rope import RoPE
from torch import nn

transformers = pytest.importorskip("transformers")

D, H, K, N, T = 48, 6, 2, 16, 13
SHAPE = {
    "hidden_size": D,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "head_dim": N,
    "num_hidden_layers": 2,
    "intermediate_size": 8,
    "vocab_size": 16,
    "attn_implementation": "eager",
}


def rope_table(module_name, rotary, config, positions):
    modeling = __import__(f"transformers.models.{module_name}.modeling_{module_name}", fromlist=[rotary])
    return getattr(modeling, rotary)(config)(torch.zeros(1, 1, D), positions)


def causal_mask(window=None):
    i = torch.arange(T)
    ahead = i[None, :] - i[:, None]
    hidden = ahead > 0 if window is None else (ahead > 0) | (ahead <= -window)
    return torch.zeros(1, 1, T, T).masked_fill(hidden, float("-inf"))


def projections(theirs):
    return {"query": theirs.q_proj, "key": theirs.k_proj, "value": theirs.v_proj, "output": theirs.o_proj}


def copied(ours, layers):
    """Copy weights by name of our layer; returns pairs of parameters whose gradients must agree."""
    pairs = []
    for name, theirs in layers.items():
        own = getattr(ours, name)
        with torch.no_grad():
            if isinstance(own, nn.Parameter):
                own.copy_(theirs)
                pairs.append((own, theirs))
                continue
            own.weight.copy_(theirs.weight)
            pairs.append((own.weight, theirs.weight))
            if getattr(own, "bias", None) is not None:
                own.bias.copy_(theirs.bias)
                pairs.append((own.bias, theirs.bias))
    return pairs


def randomise(module):
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.3)
            if parameter.ndim == 1:
                parameter.add_(1.0)


def agree(attention, ours, theirs, pairs, call):
    """Outputs, and gradients of inputs and of every pair of parameters."""
    x = torch.randn(2, T, D, requires_grad=True)
    x_of_theirs = x.detach().clone().requires_grad_()
    expected = call(theirs, x_of_theirs)[0]
    actual = attention.run(ours, x)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)
    weights = torch.randn_like(expected)
    (actual * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, x_of_theirs.grad, atol=1e-4, rtol=1e-3)
    for own, other in pairs:
        torch.testing.assert_close(own.grad, other.grad, atol=2e-4, rtol=1e-3)
    assert len(pairs) == len(list(ours.parameters()))


def build(attention, **arguments):
    shape = {"d_model": D, "n_heads": H, "n_kv_heads": K, "head_width": N, "dtype": torch.float32}
    return attention.build(**shape, **arguments)


def test_llama_with_groups_and_biases(attention):
    from transformers.models.llama.modeling_llama import LlamaAttention

    config = transformers.LlamaConfig(
        **SHAPE, attention_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    )
    theirs = LlamaAttention(config, 0)
    randomise(theirs)
    table = rope_table("llama", "LlamaRotaryEmbedding", config, torch.arange(T)[None])
    ours = build(attention, bias=True, output_bias=True, position=lambda context: RoPE(context, base=500.0))
    pairs = copied(ours, projections(theirs))
    agree(attention, ours, theirs, pairs, lambda m, x: m(x, table, causal_mask()))


def test_float64_llama_agrees_to_the_last_digits(attention):
    from transformers.models.llama.modeling_llama import LlamaAttention

    config = transformers.LlamaConfig(**{**SHAPE, "attn_implementation": "sdpa"})  # the eager softmax is float32
    theirs = LlamaAttention(config, 0).double()
    randomise(theirs)
    table = [t.double() for t in rope_table("llama", "LlamaRotaryEmbedding", config, torch.arange(T)[None])]
    ours = build(attention, position=RoPE).double()
    copied(ours, projections(theirs))
    x = torch.randn(2, T, D, dtype=torch.float64)
    expected = theirs(x, table, causal_mask().double())[0]
    torch.testing.assert_close(attention.run(ours, x), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("op", [SDPA, Banded])
def test_mistral_window(attention, op):
    from transformers.models.mistral.modeling_mistral import MistralAttention

    config = transformers.MistralConfig(**SHAPE, sliding_window=4)
    theirs = MistralAttention(config, 0)
    randomise(theirs)
    table = rope_table("mistral", "MistralRotaryEmbedding", config, torch.arange(T)[None])
    mask = transformers.masking_utils.create_sliding_window_causal_mask(
        config=config, inputs_embeds=torch.zeros(2, T, D), attention_mask=None, cache=None
    )
    torch.testing.assert_close(mask.clamp_min(-1.0), causal_mask(4).clamp_min(-1.0).expand_as(mask))
    ours = build(attention, window=4, position=RoPE, op=op)
    agree(attention, ours, theirs, copied(ours, projections(theirs)), lambda m, x: m(x, table, mask))


def test_qwen3_norm_per_head(attention):
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    config = transformers.Qwen3Config(**SHAPE)
    theirs = Qwen3Attention(config, 0)
    randomise(theirs)
    table = rope_table("qwen3", "Qwen3RotaryEmbedding", config, torch.arange(T)[None])
    ours = build(attention, qk_norm="head", position=RoPE)
    pairs = copied(ours, {**projections(theirs), "query_norm": theirs.q_norm, "key_norm": theirs.k_norm})
    agree(attention, ours, theirs, pairs, lambda m, x: m(x, table, causal_mask()))


def test_olmo2_norm_over_the_whole(attention):
    from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention

    config = transformers.Olmo2Config(**{**SHAPE, "rms_norm_eps": 1e-6})
    theirs = Olmo2Attention(config, 0)
    randomise(theirs)
    table = rope_table("olmo2", "Olmo2RotaryEmbedding", config, torch.arange(T)[None])
    ours = build(attention, qk_norm="whole", position=RoPE)
    pairs = copied(ours, {**projections(theirs), "query_norm": theirs.q_norm, "key_norm": theirs.k_norm})
    agree(attention, ours, theirs, pairs, lambda m, x: m(x, table, causal_mask()))


@pytest.mark.parametrize("layer", [0, 1])
def test_gpt_oss_sinks(attention, layer):
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

    kinds = ["sliding_attention", "full_attention"]
    config = transformers.GptOssConfig(
        **SHAPE, layer_types=kinds, sliding_window=4, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )
    theirs = GptOssAttention(config, layer)
    randomise(theirs)
    window = (4, None)[layer]
    assert theirs.sliding_window == window
    table = rope_table("gpt_oss", "GptOssRotaryEmbedding", config, torch.arange(T)[None])
    ours = build(attention, sinks=True, window=window, bias=True, output_bias=True, position=RoPE)
    pairs = copied(ours, {**projections(theirs), "sinks": theirs.sinks})
    agree(attention, ours, theirs, pairs, lambda m, x: m(x, table, causal_mask(window)))


def test_gemma2_soft_cap_and_scale(attention):
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

    config = transformers.Gemma2Config(**SHAPE, attn_logit_softcapping=5.0, query_pre_attn_scalar=9)
    theirs = Gemma2Attention(config, 1)
    randomise(theirs)
    table = rope_table("gemma2", "Gemma2RotaryEmbedding", config, torch.arange(T)[None])
    ours = build(attention, soft_cap=5.0, scale=9.0**-0.5, position=RoPE)
    agree(attention, ours, theirs, copied(ours, projections(theirs)), lambda m, x: m(x, table, causal_mask()))


def test_qwen3_next_gate_and_partial_rotation(attention):
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    config = transformers.Qwen3NextConfig(**SHAPE, rope_parameters=rope)
    theirs = Qwen3NextAttention(config, 0)
    randomise(theirs)
    table = rope_table("qwen3_next", "Qwen3NextRotaryEmbedding", config, torch.arange(T)[None])
    position = partial(RoPE, fraction=0.25)
    ours = build(attention, qk_norm="head", norm=ZeroCentredRMSNorm, output_gate=True, position=position)
    copied(ours, {"key": theirs.k_proj, "value": theirs.v_proj, "output": theirs.o_proj})
    with torch.no_grad():
        query, gate = theirs.q_proj.weight.view(H, 2, N, D).unbind(1)  # theirs is one projection, ours are two
        ours.query.weight.copy_(query.reshape(-1, D))
        ours.gate.weight.copy_(gate.reshape(-1, D))
        ours.query_norm.weight.copy_(theirs.q_norm.weight)
        ours.key_norm.weight.copy_(theirs.k_norm.weight)
    x = torch.randn(2, T, D)
    expected = theirs(x, table, causal_mask())[0]
    actual = attention.run(ours, x)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)
    actual.sum().backward()
    expected.sum().backward()
    query, gate = theirs.q_proj.weight.grad.view(H, 2, N, D).unbind(1)
    torch.testing.assert_close(ours.query.weight.grad, query.reshape(-1, D), atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(ours.gate.weight.grad, gate.reshape(-1, D), atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(ours.query_norm.weight.grad, theirs.q_norm.weight.grad, atol=2e-4, rtol=1e-3)


def test_gptj_interleaved_partial_rotation(attention):
    from transformers.models.gptj.modeling_gptj import GPTJAttention, GPTJRotaryEmbedding

    config = transformers.GPTJConfig(
        n_embd=D, n_head=H, n_layer=1, n_positions=32, rotary_dim=4, attn_pdrop=0.0, resid_pdrop=0.0, vocab_size=16
    )
    theirs = GPTJAttention(config, 0)
    randomise(theirs)
    ours = attention.build(
        d_model=D,
        n_heads=H,
        dtype=torch.float32,
        position=lambda context: RoPE(context, fraction=0.5, interleaved=True),
    )
    layers = {"query": theirs.q_proj, "key": theirs.k_proj, "value": theirs.v_proj, "output": theirs.out_proj}
    table = GPTJRotaryEmbedding(config)(torch.zeros(1, 1, D), torch.arange(T)[None])
    agree(attention, ours, theirs, copied(ours, layers), lambda m, x: m(x, table, causal_mask()))
