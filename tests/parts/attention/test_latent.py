"""Multi-head latent attention against DeepSeek-V3's in `transformers`, and against its definition."""

import math

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.state import nbytes
from bakeoff.parts.attention.banded import Banded
from bakeoff.parts.attention.functional import Scoring, attend_naively
from bakeoff.parts.attention.latent import LatentAttention
from bakeoff.parts.low_rank import adapted, low_rank
from bakeoff.parts.positions.alibi import ALiBi
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


def expanded_and_absorbed(attention, mixer, x, sizes, **what):
    """Outputs through the state by either form, forced."""
    outputs = []
    for absorbs in (False, True):
        mixer._absorbs = lambda queries, keys, absorbs=absorbs: absorbs
        outputs.append(attention.in_chunks(mixer, x, sizes, **what)[0])
    del mixer._absorbs
    return outputs


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [{"position": RoPE}, {"value_width": 30, "query_rank": Q}, {"position": ALiBi, "latent_width": 5}],
    ids=["rotated", "values wider than keys", "with a bias"],
)
def test_both_forms_are_one_function(attention, arguments, gradients):
    mixer = build(**arguments)
    x = torch.randn(2, 9, D, dtype=torch.float64)
    documents = torch.tensor([[0] * 9, [0] * 4 + [1] * 5])
    real = torch.ones(2, 9, dtype=torch.bool)
    real[0, :2] = False
    with torch.set_grad_enabled(gradients):
        one, other = expanded_and_absorbed(attention, mixer, x, [4, 1, 3, 1], documents=documents, real=real)
    torch.testing.assert_close(one[real], other[real], atol=1e-11, rtol=1e-9)
    if gradients:
        parameters, weights = [*mixer.parameters()], torch.randn_like(one) * real[..., None]
        for a, b in zip(*(torch.autograd.grad((y * weights).sum(), parameters) for y in (one, other)), strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


def test_outputs_are_the_definition(attention):
    """Every head's keys and values written out, one query at a time."""
    mixer = build(query_rank=Q, scale=0.3)
    x = torch.randn(2, 7, D, dtype=torch.float64)
    q = mixer.query(mixer.query_norm(mixer.query_down(x))).view(2, 7, H, N + R)
    low, shared = mixer.key_value_down(x)[..., :C], mixer.key_value_down(x)[..., C:]
    low = low / (low.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.key_value_norm.weight
    heads = [rows @ low[..., None] for rows in mixer.key_value_up.weight.view(H, 1, 1, N + P, C)]
    k = torch.stack([torch.cat([head[..., :N, 0], shared], -1) for head in heads], 2)
    v = torch.stack([head[..., N:, 0] for head in heads], 2)
    causal = torch.ones(2, 7, 7, dtype=torch.bool).tril()
    expected = attend_naively(q, k, v, causal, Scoring(scale=0.3)).flatten(2) @ mixer.output.weight.t()
    torch.testing.assert_close(attention.run(mixer, x), expected, atol=1e-11, rtol=1e-9)


def test_a_token_takes_the_latent_and_the_shared_key():
    mixer = build(torch.float32)
    with torch.no_grad():
        assert nbytes(mixer.empty_state(2, 50)) == 2 * 50 * (C + R) * 4
        assert nbytes(mixer.empty_state(2, 50, torch.bfloat16)) == 2 * 50 * (C + R) * 2


DEEPSEEK_V3 = {
    "n_heads": 128,
    "head_width": 128,
    "rotary_width": 64,
    "latent_width": 512,
    "query_rank": 1536,
}


def test_deepseek_v3_at_its_published_shape():
    """Parameters as in its files: 7168 x 1536 + 1536 + 1536 x 24576 + 7168 x 576 + 512 + 512 x 32768 + 16384 x 7168."""
    with torch.device("meta"):
        mixer = LatentAttention(LayerContext(d_model=7168, vocab_size=16, max_length=64), **DEEPSEEK_V3)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == 187_107_328
    # 576 numbers a token, 57 times fewer than 128 heads of 128 would keep
    with torch.no_grad():
        assert mixer.empty_state(1, 1, device="meta")["latent"].shape == (1, 1, 576)


@pytest.mark.parametrize(
    ("queries", "keys", "absorbed"),
    [(1, 1, False), (1, 2, True), (1, 4096, True), (151, 4096, True), (152, 4096, False), (64, 64, False)],
)
def test_the_form_with_less_work_is_taken(queries, keys, absorbed):
    """By hand: a key costs 512 x 256 multiply-adds a head to expand; a pair costs 320, or 1152 when absorbed."""
    with torch.device("meta"):
        mixer = LatentAttention(LayerContext(d_model=7168, vocab_size=16, max_length=64), **DEEPSEEK_V3)
    tokens = 2 * queries * (7168 * 1536 + 1536 * 24576 + 7168 * 576 + 16384 * 7168)
    pairs = sum(keys - queries + t for t in range(1, queries + 1))
    form = queries * 512 * 256 + 1152 * pairs if absorbed else keys * 512 * 256 + 320 * pairs
    assert mixer.flops(queries, keys) == tokens + 2 * 128 * form


@pytest.mark.parametrize("name", ["n_heads", "head_width", "rotary_width", "latent_width", "value_width", "query_rank"])
def test_a_width_of_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"latent_attention: .*{name} 0.*each must be at least 1"):
        build(**{name: 0})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"position": LearnedPosition}, ["latent_attention.position", "LearnedPosition", "model.position"]),
        ({"position": RoPE, "rotary_width": 3}, ["RoPE", "3", "even"]),
        ({"op": Banded}, ["banded", "window"]),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments, words):
    with pytest.raises(UserError) as refusal:
        build(**arguments)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("sizes", [[9], [4, 1, 1, 3]])
def test_bfloat16_autocast_stays_near(attention, sizes):
    mixer = build(torch.float32, position=RoPE, query_rank=Q)
    x = torch.randn(2, 9, D)
    expected = attention.run(mixer, x)
    with torch.autocast("cpu", torch.bfloat16):
        attention.run(mixer, x).float().sum().backward()
        with torch.no_grad():
            y, state, _ = attention.in_chunks(mixer, x, sizes, state=mixer.empty_state(2, 64, torch.bfloat16))
    assert state["latent"].dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, atol=5e-2, rtol=5e-2)
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in mixer.parameters())


def test_an_adapter_reaches_the_absorbed_form_too(attention):
    mixer = build(position=RoPE)
    adapter = low_rank(LayerContext(d_model=D, vocab_size=16, max_length=64), mixer, ["key_value_up"], 2).double()
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 6, D, dtype=torch.float64)
    with torch.no_grad():
        view = adapted(mixer, [(adapter, ["key_value_up"])])
        y, _, _ = attention.in_chunks(view, x, [1] * 6)
        torch.testing.assert_close(y, attention.run(view, x), atol=1e-11, rtol=1e-9)
        assert not torch.allclose(y, attention.run(mixer, x))
