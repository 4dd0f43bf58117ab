"""Forms on the kernels of `fla`, which a recurrence in its documented layout stands in for, give what torch gives."""

import importlib
import sys

import pytest
import torch
from bakeoff.parts.scans.scalar_decay import scalar_decay_naive
from bakeoff_linear.delta_rule import delta_rule_naive
from bakeoff_linear.feature_maps import feature_map_called
from bakeoff_linear.generalised_delta_rule import generalised_delta_rule_naive
from bakeoff_linear.gla_scan import gla_naive
from bakeoff_linear.linear_attention_scan import linear_attention_naive

from . import fake_fla

B, T, H, G, N, P = 3, 7, 4, 2, 5, 3
#: Documents that begin at the first token, later, and several times; the second row goes on with what was before.
SEGMENTS = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 2, 2, 3, 3]])


@pytest.fixture
def kernels(monkeypatch):
    fake_fla.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "bakeoff_linear.kernels", raising=False)
    return importlib.import_module("bakeoff_linear.kernels")


def cases():
    """Name, naive form, tensors, rows and columns of the state, options."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)

    q, k, v = drawn(B, T, H, N), drawn(B, T, H, N), drawn(B, T, H, P)
    few_q, few_k = drawn(B, T, G, N), drawn(B, T, G, N)
    beta = torch.rand(B, T, H, dtype=torch.float64, generator=generator, requires_grad=True)
    by_head, by_channel = (-drawn(*shape).detach().abs() for shape in ((B, T, H), (B, T, H, N)))
    real = torch.ones(B, T, dtype=torch.bool)
    real[0, :2] = False
    elu, taylor = feature_map_called("elu_plus_one", N), feature_map_called("taylor", N)
    one_a_head = torch.tensor([-0.1, -0.2, -0.5, -3.0], dtype=torch.float64)
    a, b = drawn(B, T, H, N), drawn(B, T, H, N)
    return {
        "linear_attention": (linear_attention_naive, (q, k, v, real), (P + 1, N), {"feature_map": elu}),
        "linear_attention: taylor": (
            linear_attention_naive, (q, k, v), (P, 1 + N + N * N), {"feature_map": taylor, "eps": None}
        ),
        "retention": (scalar_decay_naive, (q, k, v, one_a_head), (P, N), {}),
        "retention: padding": (scalar_decay_naive, (q, k, v, by_head), (P, N), {}),
        "gla": (gla_naive, (q, k, v, by_channel), (P, N), {}),
        "delta_rule": (delta_rule_naive, (few_q, few_k, v, beta), (P, N), {}),
        "delta_rule: gated": (delta_rule_naive, (few_q, few_k, v, beta, by_head), (P, N), {}),
        "delta_rule: kda": (delta_rule_naive, (q, k, v, beta, by_channel), (P, N), {}),
        "generalised_delta_rule": (generalised_delta_rule_naive, (q, k, v, a, b, by_channel), (P, N), {}),
    }  # fmt: skip


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one document", "documents"])
@pytest.mark.parametrize("continued", [False, True], ids=["alone", "continued"])
@pytest.mark.parametrize("name", cases())
def test_values_and_gradients(kernels, name, continued, segments):
    naive, given, (rows, columns), options = cases()[name]
    state = torch.rand(B, H, rows, columns, dtype=torch.float64, requires_grad=True) if continued else None
    leaves = [t for t in (*given, state) if t is not None and t.requires_grad]
    found = []
    for form in (getattr(kernels, name.partition(":")[0]), naive):
        y, after = form(*given, state=state, segments=segments, **options)
        assert (after is None) == (state is None)
        total = y.sin().sum() if after is None else y.sin().sum() + after.sin().sum()
        found.append([y, *([] if after is None else [after]), *torch.autograd.grad(total, leaves)])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)
