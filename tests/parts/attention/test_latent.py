"""Multi-head latent attention against DeepSeek-V3's in `transformers`, and against its definition."""

import math

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.state import nbytes
from bakeoff.parts.attention.functional import Scoring, attend_naively
from bakeoff.parts.attention.latent import LatentAttention
from bakeoff.parts.positions.learned import LearnedPosition
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.positions.yarn_rope import YaRNRoPE

D, H, N, R, P, C, Q = 48, 6, 16, 8, 12, 20, 28
WIDTHS = {"n_heads": H, "head_width": N, "rotary_width": R, "value_width": P, "latent_width": C}
T = 13


def build(dtype=torch.float64, seed=0, **arguments):
    """An initialised `LatentAttention`, the gains of its norms not all 1."""
    mixer = LatentAttention(LayerContext(d_model=D, vocab_size=16, max_length=64), **{**WIDTHS, **arguments})
    initialise(mixer, seed=seed)
    with torch.no_grad():
        for parameter in mixer.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) / 2)
    return mixer.to(dtype)


#: DeepSeek-V3's, made small: `transformers`' words and ours.
YARN = {"factor": 40.0, "original_length": 16, "attention_factor": 1.0, "interleaved": True}
YARN_OF_THEIRS = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def theirs_and_ours(rank, rope, *, dtype=torch.float32, **arguments):
    """DeepSeek-V3's attention with random weights, its table of cosines and sines, and ours with the same weights."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

    config = transformers.DeepseekV3Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=rank,
        kv_lora_rank=C,
        qk_nope_head_dim=N,
        qk_rope_head_dim=R,
        v_head_dim=P,
        rope_parameters=rope,
        attn_implementation="eager",
    )
    theirs = modeling.DeepseekV3Attention(config, 0)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.3).add_(1.0 if parameter.ndim == 1 else 0.0)
    table = modeling.DeepseekV3RotaryEmbedding(config)(torch.zeros(1, 1, D), torch.arange(T)[None])
    ours = build(dtype, query_rank=rank, **arguments)
    return theirs, table, ours, copied(ours, theirs)


def copied(ours, theirs):
    """Pairs of parameters, ours now with their values."""
    named = {
        "query_down": "q_a_proj",
        "query_norm": "q_a_layernorm",
        "query": "q_proj" if ours.query_rank is None else "q_b_proj",
        "key_value_down": "kv_a_proj_with_mqa",
        "key_value_norm": "kv_a_layernorm",
        "key_value_up": "kv_b_proj",
        "output": "o_proj",
    }
    pairs = [
        (own, theirs.get_submodule(named[name.removesuffix(".weight")]).weight) for name, own in ours.named_parameters()
    ]
    with torch.no_grad():
        for own, other in pairs:
            own.copy_(other)
    assert len(pairs) == len(list(theirs.parameters()))
    return pairs


def causal_mask():
    return torch.full((T, T), -math.inf).triu(1)[None, None]


PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
SCALE = (1 + 0.1 * math.log(40)) ** 2 / math.sqrt(N + R)
CASES = [
    (Q, PLAIN, {"position": lambda context: RoPE(context, interleaved=True)}),
    (None, PLAIN, {"position": lambda context: RoPE(context, interleaved=True)}),
    (Q, YARN_OF_THEIRS, {"position": lambda context: YaRNRoPE(context, **YARN), "scale": SCALE}),
]


@pytest.mark.parametrize(("rank", "rope", "arguments"), CASES, ids=["low_rank", "full_queries", "yarn"])
def test_deepseek_v3_outputs_and_gradients(attention, rank, rope, arguments):
    theirs, table, ours, pairs = theirs_and_ours(rank, rope, **arguments)
    x = torch.randn(2, T, D, requires_grad=True)
    x_of_theirs = x.detach().clone().requires_grad_()
    expected = theirs(x_of_theirs, table, causal_mask())[0]
    actual = attention.run(ours, x)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)
    weights = torch.randn_like(expected)
    (actual * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, x_of_theirs.grad, atol=1e-4, rtol=1e-3)
    for own, other in pairs:
        torch.testing.assert_close(own.grad, other.grad, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("sizes", [[1] * T, [5, 1, 4, 3], [10, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("gradients", [False, True])
def test_deepseek_v3_token_by_token(attention, sizes, gradients):
    from transformers.cache_utils import DynamicCache

    rank, rope, arguments = CASES[2]
    theirs, table, ours, _ = theirs_and_ours(rank, rope, **arguments)
    x, cache, expected = torch.randn(2, T, D), DynamicCache(), []
    with torch.no_grad():
        for t in range(T):
            row = [whole[:, t : t + 1] for whole in table]
            expected.append(theirs(x[:, t : t + 1], row, None, cache=cache)[0])
    with torch.set_grad_enabled(gradients):
        actual, _, _ = attention.in_chunks(ours, x, sizes)
    torch.testing.assert_close(actual, torch.cat(expected, 1), atol=2e-5, rtol=1e-4)
