"""RWKV-7 against its equations written out token by token in float64, its rule by chunks, and its published values."""

import math
from functools import partial

import bakeoff
import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.interfaces.state import nbytes
from bakeoff_linear import RWKV7, RWKVChannelMix
from bakeoff_linear.generalised_delta_rule import (
    generalised_delta_rule,
    generalised_delta_rule_naive,
    generalised_delta_rule_step,
)
from torch import nn
from torch.nn import functional as F

D, H, N = 12, 3, 4
SIZES = {"head_width": N, "decay_rank": 2, "rate_rank": 3, "value_rank": 2, "gate_rank": 5}


def random_values(part, seed=1):
    """Every parameter drawn, so that what starts at zero hides nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return part


def build(layer=0, dtype=torch.float64, d_model=D, depth=2, cls=RWKV7, **arguments):
    place = LayerContext(d_model=d_model, vocab_size=50, max_length=128, layer=layer, depth=depth)
    part = cls(place, **(SIZES if cls is RWKV7 else {}) | arguments)
    initialise(part, seed=0)
    return part.to(dtype)


def inputs(T, batch=2, seed=1):
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(part, x, state=None, memory=None, **described):
    return part(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long), memory=memory, **described), state)


def written_out(mixer, x, v_first):
    """The paper's equations for one row (T, D), one token and one head after the other; outputs and values."""
    p = dict(mixer.named_parameters())
    S, before, rows, shown = torch.zeros(H, N, N, dtype=x.dtype), torch.zeros(D, dtype=x.dtype), [], []

    def low(name, z, inner=lambda t: t):
        return p[f"{name}.up.weight"] @ inner(p[f"{name}.down.weight"] @ z)

    for t, token in enumerate(x):
        mixed = {
            n: token + (before - token) * p[f"mix_{n}"] for n in ("receptance", "decay", "key", "value", "rate", "gate")
        }
        r, k, v = (p[f"{n}.weight"] @ mixed[n] for n in ("receptance", "key", "value"))
        shown.append(v)
        if v_first is not None:
            v = v + (v_first[t] - v) * torch.sigmoid(p["residual_bias"] + low("residual", mixed["value"]))
        d = p["decay_bias"] + low("decay", mixed["decay"], torch.tanh)
        w = torch.exp(-torch.exp(-F.softplus(-d) - 0.5))
        a = torch.sigmoid(p["rate_bias"] + low("rate", mixed["rate"]))
        g = low("gate", mixed["gate"], torch.sigmoid)
        removed = k * p["key_scale"]
        k = k * (1 + (a - 1) * p["key_rate"])
        outs = []
        for h in range(H):
            c = slice(h * N, (h + 1) * N)
            kappa = removed[c] / removed[c].norm()
            S[h] = S[h] @ (torch.diag(w[c]) - torch.outer(kappa, a[c] * kappa)) + torch.outer(v[c], k[c])
            y = S[h] @ r[c]
            y = (y - y.mean()) / (y.var(unbiased=False) + 1e-5 * N).sqrt() * p["norm_weight"][c] + p["norm_bias"][c]
            outs.append(y + (r[c] * p["bonus"][h] * k[c]).sum() * v[c])
        rows.append(p["output.weight"] @ (torch.cat(outs) * g))
        before = token
    return torch.stack(rows), torch.stack(shown)


@torch.no_grad()
@pytest.mark.parametrize("T", [1, 2, 19])
def test_equals_the_published_equations(T):
    first, later, x = random_values(build(chunk=8)), random_values(build(1, chunk=8), seed=2), inputs(T)
    y, _, _, shown = run(first, x)
    z = run(later, y, memory=shown).y
    for row in range(2):
        expected, values = written_out(first, x[row], None)
        torch.testing.assert_close(y[row], expected, atol=1e-10, rtol=1e-10)
        expected, _ = written_out(later, y[row], values)
        torch.testing.assert_close(z[row], expected, atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_channel_mixing_equals_its_equation():
    part, x = random_values(build(cls=RWKVChannelMix)), inputs(5)
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    mixed = x * (1 - part.mix) + before * part.mix
    expected = torch.relu(mixed @ part.up.weight.T) ** 2 @ part.down.weight.T
    torch.testing.assert_close(run(part, x).y, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("cls", [RWKV7, RWKVChannelMix])
def test_the_first_token_of_a_document_has_none_before_it(cls):
    part, x = random_values(build(cls=cls)), inputs(9, batch=1)
    documents = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 2])[None]
    together = run(part, x, documents=documents).y
    alone = torch.cat([run(part, each).y for each in x.split([3, 1, 5], 1)], 1)
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


def test_values_of_the_first_layer_must_be_shown():
    with pytest.raises(CapabilityError, match="value_residual: false"):
        run(build(1), inputs(3))
    assert run(build(1, value_residual=False), inputs(3)).memory.keys() == run(build(), inputs(3)).memory.keys()


def test_a_model_decodes_as_it_is_trained():
    recipe = bakeoff.recipe("bakeoff:models/rwkv7.yaml", {"model.depth": 3, "model.d_model": 32})
    model = random_values(recipe.build("model", vocab_size=40).initialise(0)).double().eval()
    tokens = torch.randint(40, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, state, rows = model.logits(tokens)[0], model.empty_state(2, 12), []
        for part in tokens.split([1, 4, 1, 1, 5], 1):
            logits, state = model.logits(part, state)
            rows.append(logits)
    assert whole.std() > 0.1
    torch.testing.assert_close(torch.cat(rows, 1), whole, atol=1e-10, rtol=0)


def given(T, dtype=torch.float64, seed=0, strong=False):
    """r, k, v, a, b and log decays, as the mixer makes them: a and b of one direction."""
    g = torch.Generator().manual_seed(seed)
    r, k, v, c = (torch.randn(2, T, H, N, generator=g, dtype=dtype) for _ in range(4))
    c, rate = F.normalize(c, dim=-1), torch.rand(2, T, H, N, generator=g, dtype=dtype)
    log_w = -torch.rand(2, T, H, N, generator=g, dtype=dtype)
    if strong:
        log_w = torch.tensor([-1e-3, -1.0, -20.0], dtype=dtype)[torch.randint(3, log_w.shape, generator=g)]
    return [t.detach().requires_grad_() for t in (r, k, v, -c, c * rate, log_w)]


def outcome(form, values, state, segments=None):
    y, after = form(*values, state=state, segments=segments)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
    loss = (y * weight).sum() + (0 if after is None else after.sin().sum())
    inputs = [*values, *([] if state is None else [state])]
    grads = torch.autograd.grad(loss, inputs, materialize_grads=True)  # a first token's decay bears on nothing
    return *([y] if after is None else [y, after]), *grads


def start(dtype=torch.float64):
    return torch.randn(2, H, N, N, generator=torch.Generator().manual_seed(9), dtype=dtype).requires_grad_()


@pytest.mark.parametrize("T", [1, 2, 31, 64, 100])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("continued", [False, True])
def test_every_chunk_size_equals_the_recurrence(T, packed, continued):
    values, state, segments = given(T), start() if continued else None, None
    if packed:
        segments = torch.zeros(2, T, dtype=torch.long)
        segments[0, 0], segments[0, T // 3], segments[1, T // 2], segments[1, T - 1] = 1, 1, 1, 1
        segments = segments.cumsum(1)
    slow = outcome(generalised_delta_rule_naive, values, state, segments)
    for chunk, bound in ((1, -1.0), (8, -math.inf), (64, -math.inf), (32, -1.0)):  # the last of mild decays
        form = partial(generalised_delta_rule, chunk=chunk, bound=bound)
        fast = outcome(form, values, state, segments)
        for a, b in zip(fast, slow, strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_steps_equal_the_whole():
    values, state = given(70), start()
    whole, after = generalised_delta_rule(*values, state=state)
    rows, held = [], state
    for t in range(70):
        y, held = generalised_delta_rule_step(*(v[:, t : t + 1] for v in values), state=held)
        rows.append(y)
    torch.testing.assert_close(torch.cat(rows, 1), whole, atol=1e-10, rtol=0)
    torch.testing.assert_close(held, after, atol=1e-10, rtol=0)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("chunk", [16, 64])
def test_strong_decays_in_float32(T, chunk):
    values = given(T, torch.float32, strong=True)
    fast = outcome(lambda *a, **k: generalised_delta_rule(*a, chunk=chunk, **k), values, start(torch.float32))
    wide = [t.detach().double().requires_grad_() for t in values]
    slow = outcome(generalised_delta_rule_naive, wide, start(torch.float32).detach().double().requires_grad_())
    for a, b in zip(fast, slow, strict=True):
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def test_what_is_found_is_found_before_the_state_decays():
    def one(x):
        return torch.full((1, 1, 1, 1), x, dtype=torch.float64)

    # 3 * (0.5 - 1 * 0.25) + 2 * 1
    for form in (generalised_delta_rule, generalised_delta_rule_naive, generalised_delta_rule_step):
        y, _ = form(one(1.0), one(1.0), one(2.0), one(-1.0), one(0.25), one(0.5).log(), state=one(3.0))
        assert y.item() == pytest.approx(2.75, abs=1e-15)


def test_state_bytes_do_not_grow_and_its_matrix_stays_float32():
    mixer = build(dtype=torch.bfloat16)
    state = mixer.empty_state(2, 1000, torch.bfloat16)
    assert nbytes(state) == 2 * (D * 2 + H * N * N * 4)
    y, after, *_ = run(mixer, inputs(20).bfloat16(), state, past=Past(2, 1000))
    assert y.dtype == torch.bfloat16
    assert after.memory.dtype == torch.float32
    assert nbytes(after) == nbytes(state)


def test_initial_values_are_the_published_ones_also_inside_a_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            place = LayerContext(d_model=128, vocab_size=1, max_length=1, depth=3)
            self.layers = nn.ModuleList(RWKV7(place.child(layer=i), head_width=64) for i in range(3))
            self.mixes = nn.ModuleList(RWKVChannelMix(place.child(layer=i)) for i in range(3))

    model = Model()
    initialise(model, seed=0, depth=3)
    first, middle, last = model.layers
    # by hand, from the authors' formulas: layer 1 of 3, channels 0 and 64 of 128, heads of 64
    assert first.mix_key[64].item() == pytest.approx(1 - 0.5**0.7, abs=1e-6)
    assert middle.mix_decay[64].item() == pytest.approx(1 - 0.5 ** (0.9 * 2 / 3), abs=1e-6)
    assert middle.decay_bias[0].item() == pytest.approx(-6 + 0.5 - 2.5, abs=1e-6)
    assert last.decay_bias[127].item() == pytest.approx(0.5 + 2.5, abs=1e-6)
    assert middle.rate_bias[0].item() == pytest.approx(-0.19 - 0.3 - 0.2, abs=1e-6)
    assert last.residual_bias[127].item() == pytest.approx(0.73 - 0.2, abs=1e-6)
    assert first.residual is None
    assert first.key_scale[0].item() == pytest.approx(0.76, abs=1e-6)
    assert (first.key_rate == 1.02).all()
    assert (first.bonus == -0.04).all()
    assert (first.output.weight == 0).all()
    assert first.key.weight.abs().max() <= 0.05 / 128**0.5
    assert (middle.decay.down.weight == 0).all()
    up = middle.decay.up.weight
    torch.testing.assert_close(up.T @ up, 0.01 * torch.eye(up.shape[1]), atol=1e-6, rtol=0)
    assert model.mixes[1].mix[64].item() == pytest.approx(1 - 0.5 ** ((2 / 3) ** 4), abs=1e-6)


def test_vectors_take_no_decay():
    mixer = build(1)
    matrices = {name for name, role in roles(mixer).items() if role != "vector"}
    assert matrices == {name for name, p in mixer.named_parameters() if p.ndim == 2 and name != "bonus"}


def test_heads_must_share_the_width():
    with pytest.raises(ValueError, match="head_width is 5 and d_model 12"):
        build(head_width=5)
