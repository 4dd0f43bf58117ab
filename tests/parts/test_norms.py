import pytest
import torch
from bakeoff.interfaces import LayerContext
from bakeoff.interfaces.init import initialise, roles
from bakeoff.parts.norms import LayerNorm, RMSNorm

CONTEXT = LayerContext(d_model=24, vocab_size=8, max_length=8)
NORMS = {
    "rms": lambda: RMSNorm(CONTEXT),
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
        return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
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
    assert (norm.weight == 1).all()
    assert getattr(norm, "bias", None) is None or (norm.bias == 0).all()


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_zeros_and_large_values_stay_finite(make):
    norm = filled(make)
    x = torch.zeros(2, 24, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad.isfinite().all()
    assert norm(torch.full((1, 24), 1e18)).isfinite().all()
