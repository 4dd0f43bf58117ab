from functools import partial

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.post_norm import PostNorm
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.linear import Linear
from bakeoff.parts.needs import gather
from bakeoff.parts.norms import LayerNorm, RMSNorm, ZeroCentredRMSNorm
from torch import nn

CONTEXT = LayerContext(d_model=24, vocab_size=8, max_length=8)
NORMS = {
    "rms": lambda: RMSNorm(CONTEXT),
    "zero-centred rms": lambda: ZeroCentredRMSNorm(CONTEXT),
    "layer": lambda: LayerNorm(CONTEXT),
    "layer, no bias": lambda: LayerNorm(CONTEXT, bias=False),
}


def filled(make, seed=0):
    norm = make()
    initialise(norm, seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter))
    return norm


def by_hand(norm, x):
    if isinstance(norm, RMSNorm):
        gain = 1 + norm.weight if isinstance(norm, ZeroCentredRMSNorm) else norm.weight
        return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * gain
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    return y if norm.bias is None else y + norm.bias


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_norms_are_their_formulas(make):
    norm = filled(make).double()
    x = torch.randn(2, 5, 24, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(norm(x), by_hand(norm, x))
    weights = torch.randn_like(x)
    inputs = [x, *norm.parameters()]
    ours = torch.autograd.grad((norm(x) * weights).sum(), inputs)
    torch.testing.assert_close(ours, torch.autograd.grad((by_hand(norm, x) * weights).sum(), inputs))


def test_rms_norm_is_llamas():
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    norm = filled(NORMS["rms"])
    theirs = modeling.LlamaRMSNorm(24, eps=1e-6)
    theirs.weight = norm.weight
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(norm(x), theirs(x), atol=1e-6, rtol=1e-6)


def test_zero_centred_rms_norm_is_gemmas():
    modeling = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    norm = filled(NORMS["zero-centred rms"])
    theirs = modeling.Gemma2RMSNorm(24, eps=1e-6)
    theirs.weight = norm.weight
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(norm(x), theirs(x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_norms_are_differentiated_twice(make):
    norm = filled(make).double()
    x = torch.randn(2, 3, 24, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradgradcheck(lambda x, *_: norm(x), (x, *norm.parameters()))


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("autocast", [False, True])
def test_low_precision_comes_back_and_is_float32_inside(make, autocast):
    norm = filled(make)
    x = (300 * torch.randn(4, 24)).to(torch.bfloat16)  # squares and sums that bfloat16 would round
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, by_hand(norm, x.float()).to(torch.bfloat16)) or torch.allclose(
        y.float(), by_hand(norm, x.float()), rtol=2**-8, atol=1e-6
    )
    assert torch.equal(norm.to(torch.bfloat16)(x).isfinite(), torch.ones_like(x, dtype=torch.bool))


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_norms_start_as_plain_normalisation(make):
    norm = make()
    initialise(norm, seed=3)
    assert set(roles(norm).values()) == {"vector"}
    assert (norm.weight == (0 if isinstance(norm, ZeroCentredRMSNorm) else 1)).all()
    assert getattr(norm, "bias", None) is None or (norm.bias == 0).all()


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_zeros_and_large_values_stay_finite(make):
    norm = filled(make)
    x = torch.zeros(2, 24, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad.isfinite().all()
    assert norm(torch.full((1, 24), 1e18)).isfinite().all()


def end_gradients(block, depth):
    """Norms, averaged over two seeds, of the gradients of the first and the last feed-forward's output matrix."""
    D, T, V, found = 64, 16, 64, []
    place = LayerContext(d_model=D, vocab_size=V, max_length=T)
    parts = {"mixer": partial(Attention, n_heads=4), "feed_forward": partial(MLP, activation="relu"), "norm": LayerNorm}
    for seed in range(2):
        layers = nn.ModuleList([block(place, **parts) for _ in range(depth)])
        final = LayerNorm(place) if block is PreNorm else nn.Identity()
        model = nn.ModuleDict({"layers": layers, "final": final, "head": Linear(D, V)})
        initialise(model, seed=seed, depth=1)
        torch.manual_seed(seed)
        x, sequence = torch.randn(16, T, D), Sequence(torch.zeros(16, T, dtype=torch.long)).prepare(gather(model))
        for layer in layers:
            x = layer(x, sequence).y
        logits = model["head"](final(x)).flatten(0, 1)
        nn.functional.cross_entropy(logits, torch.randint(V, (16 * T,))).backward()
        found.append([layers[i].feed_forward.down.weight.grad.norm() for i in (0, -1)])
    return torch.tensor(found).mean(0).tolist()


def test_gradients_of_the_last_layer_shrink_with_depth_where_norms_come_first():
    # Xiong et al. 2020, theorem 1: O(d sqrt(ln d)) with norms after, O(d sqrt(ln d / L)) with norms before
    for depth in (2, 8, 32):
        before, after = (end_gradients(block, depth) for block in (PreNorm, PostNorm))
        assert 0.5 < before[1] / after[1] * depth**0.5 < 2
    assert before[0] > before[1]
    assert after[0] < after[1]
