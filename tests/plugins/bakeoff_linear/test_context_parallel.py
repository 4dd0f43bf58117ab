"""Scans in spans, as ranks have them that share out the tokens of rows, and models of them."""

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from bakeoff.interfaces import Sequence
from bakeoff.parts.scans.along import changed_along, decayed_along
from bakeoff.parts.scans.scalar_decay import scalar_decay, scalar_decay_naive
from bakeoff.testing.ranks import shared_ranks
from bakeoff_linear.delta_rule import delta_rule, delta_rule_naive
from bakeoff_linear.feature_maps import feature_map_called
from bakeoff_linear.generalised_delta_rule import generalised_delta_rule, generalised_delta_rule_naive
from bakeoff_linear.gla_scan import gla, gla_naive
from bakeoff_linear.linear_attention_scan import linear_attention, linear_attention_naive
from torch import distributed
from torch.nn import functional as F

from . import fake_fla

CASES = Path(__file__).with_name("cases_of_context.py")
B, T, H, G, N, P = 2, 37, 4, 2, 5, 3
#: Small models of recipes: those without attention, and those with it.
SMALL = {"model.d_model": 32, "model.blocks.layer.feed_forward.width": 24}
PURE = {
    "gated_delta_net": {**SMALL, "model.depth": 2},
    "rwkv7": {**SMALL, "model.depth": 2, "model.blocks.layer.mixer.head_width": 8},
}
HYBRID = {
    "based": SMALL | {"model.blocks.window.mixer.window": 6},
    "qwen3_next": SMALL | {"model.depth": 4},
}

#: How a scan goes along spans, its chunked and its naive form, the name of the one on kernels, and how a state decays.
SCANS = {
    "retention": (decayed_along, scalar_decay, scalar_decay_naive, "retention", "head"),
    "gla": (decayed_along, gla, gla_naive, "gla", "channel"),
    "delta_net": (changed_along, delta_rule, delta_rule_naive, "delta_rule", None),
    "gated_delta_net": (changed_along, delta_rule, delta_rule_naive, "delta_rule", "head"),
    "kda": (changed_along, delta_rule, delta_rule_naive, "delta_rule", "channel"),
    "rwkv7": (changed_along, generalised_delta_rule, generalised_delta_rule_naive, "generalised_delta_rule", "channel"),
}


@pytest.fixture
def kernels(monkeypatch):
    fake_fla.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "bakeoff_linear.kernels", raising=False)
    return importlib.import_module("bakeoff_linear.kernels")


@pytest.fixture
def spans():
    """Of packed documents, as the only rank has them: two, in order."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    place = torch.arange(T).expand(B, -1)
    documents = (place > torch.tensor([[4], [25]])).long()
    whole = Sequence(torch.zeros(B, T, dtype=torch.long), documents=documents)
    yield whole.shared_out(distributed.group.WORLD, "zigzag").spans
    distributed.destroy_process_group()


def given(name, decays=(-0.01, -0.3, -2.0)):
    """Queries, keys and values, and what else a scan is given."""
    g = torch.Generator().manual_seed(0)
    double = {"generator": g, "dtype": torch.float64}
    groups = G if name in ("delta_net", "gated_delta_net") else H
    q, k = (F.normalize(torch.randn(B, T, groups, N, **double), dim=-1) for _ in range(2))
    v, beta = torch.randn(B, T, H, P, **double), torch.rand(B, T, H, **double)
    shape = {"head": (B, T, H), "channel": (B, T, H, N), None: (0,)}[SCANS[name][-1]]
    log_a = torch.tensor(decays, dtype=torch.float64)[torch.randint(len(decays), shape, generator=g)]
    if name == "rwkv7":
        found = F.normalize(torch.randn(B, T, H, N, **double), dim=-1)
        others = [-found, found * beta[..., None], log_a]
    else:
        others = {"retention": [log_a], "gla": [log_a], "delta_net": [beta]}.get(name, [beta, log_a])
    return [t.detach().requires_grad_() for t in (q, k, v, *others)]


def outcome(scan, values):
    y = scan(*values)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
    return [y, *torch.autograd.grad((y * weight).sum(), values)]


@pytest.mark.parametrize("form", ["chunked", "naive", "kernels"])
@pytest.mark.parametrize("name", SCANS)
def test_spans_equal_the_recurrence_over_the_row(kernels, spans, name, form):
    along, chunked, naive, kernel, _ = SCANS[name]
    scan = {"chunked": partial(chunked, chunk=8), "naive": naive, "kernels": getattr(kernels, kernel)}[form]
    values = given(name)
    expected = outcome(lambda *t: naive(*t, segments=spans.whole.segments)[0], values)
    for ours, wanted in zip(outcome(partial(along, scan, spans=spans), values), expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", ["torch", "kernels"])
@pytest.mark.parametrize("feature_map", ["elu_plus_one", "taylor"])
def test_linear_attention_in_spans_equals_the_recurrence_over_the_row(kernels, spans, feature_map, form):
    q, k, v = given("gla")[:3]
    real = torch.arange(T).expand(B, -1) < torch.tensor([[T], [T - 6]])
    options = {"feature_map": feature_map_called(feature_map, N)}
    scan = {"torch": linear_attention, "kernels": kernels.linear_attention}[form]
    whole = spans.whole.segments
    expected = outcome(lambda *t: linear_attention_naive(*t, real, segments=whole, **options)[0], [q, k, v])
    found = outcome(lambda *t: scan(*t, real, spans=spans, **options)[0], [q, k, v])
    for ours, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("by_token", [False, True])
def test_kernels_of_retention_take_spans(kernels, spans, by_token):
    *values, log_a = given("retention")
    log_a = log_a.detach() if by_token else log_a.detach()[0, 0]
    expected = outcome(lambda *t: scalar_decay_naive(*t, log_a, segments=spans.whole.segments)[0], values)
    found = outcome(lambda *t: kernels.retention(*t, log_a, spans=spans)[0], values)
    for ours, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("decays", [(-1e-7,), (-1e4,), (-1e-7, -1e4, 0.0)], ids=["weak", "strong", "mixed"])
@pytest.mark.parametrize("name", [name for name, scan in SCANS.items() if scan[-1]])
def test_no_decay_is_too_strong_or_too_weak_for_float32(spans, name, decays):
    along, chunked, naive, *_ = SCANS[name]
    values = given(name, decays)
    exact = outcome(lambda *t: naive(*t, segments=spans.whole.segments)[0], values)
    found = outcome(partial(along, chunked, spans=spans), [t.detach().float().requires_grad_() for t in values])
    for ours, wanted in zip(found, exact, strict=True):
        assert ours.isfinite().all()
        allowed = 2e-6 * max(1.0, float(wanted.detach().abs().max()))
        torch.testing.assert_close(ours.double(), wanted, rtol=0, atol=allowed)


@pytest.mark.parametrize("recipe", PURE)
def test_models_equal_one_process(recipe):
    shared_ranks(2).run(CASES, "model_equals_one", recipe=recipe, changes=PURE[recipe], orders=["zigzag"])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", HYBRID)
def test_hybrids_with_attention_equal_one_process(recipe):
    orders = ["contiguous", "zigzag"]
    shared_ranks(2).run(CASES, "model_equals_one", recipe=recipe, changes=HYBRID[recipe], orders=orders)
