"""Products by group: the loop and the one kernel against the definition, row by row.

The kernel's part is played by the CPU's `torch._grouped_mm`, and by a stand-in that asks for the layouts that the CUDA
kernel asks for and leaves garbage where that one writes nothing.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.parts.needs import gather
from bakeoff.testing.build import built
from bakeoff_moe import MixtureOfExperts
from bakeoff_moe.experts import Experts
from bakeoff_moe.grouped_product import Groups, grouped_product, grouped_product_naive, has_kernel
from torch.utils import deterministic

D, F = 16, 24
COUNTS = [[3, 0, 4, 1], [0, 5, 0, 0], [0, 0, 0, 0], [2, 2, 2, 2]]


@pytest.fixture
def garbage():
    """Memory that is not filled holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def half_precision():
    """Parameters are made in bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


def stand_in(a, b, *, offs):
    """(M, D) times (E, D, F) by rows, or (F, M) times (M, D) by what is summed over; NaN where no group writes."""
    assert offs.dtype == torch.int32
    assert offs.ndim == 1
    for matrix in (a, b):
        assert sorted(matrix.stride()[-2:])[0] == 1
        assert sorted(matrix.stride()[-2:])[1] % 8 == 0
    ends = offs.tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    if b.ndim == 3:
        assert a.stride(1) == 1, "rows of groups of any size must stand by rows"
        y = a.new_full((len(a), b.shape[2]), torch.nan)
        for e, span in enumerate(spans):
            y[span] = a[span] @ b[e]
        return y
    assert a.stride(0) == 1, "what groups of any size are summed over must stand by columns on the left"
    assert b.stride(1) == 1, "and by rows on the right"
    y = a.new_full((len(ends), len(a), b.shape[1]), torch.nan)
    for e, span in enumerate(spans):
        if span.start < span.stop:
            y[e] = a[:, span] @ b[span]
    return y


def case(counts, dtype):
    draw = torch.Generator().manual_seed(0)
    rows = sum(counts) + 3  # the last three belong to no group
    x, dy = (torch.randn(rows, width, generator=draw, dtype=dtype) for width in (D, F))
    weight = torch.randn(len(counts), F, D, generator=draw, dtype=dtype)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    return x, weight, dy, ends


def pulled(product, x, weight, groups, dy):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = product(x, weight, groups)
    y.backward(dy)
    return y.detach(), x.grad, weight.grad


def by_definition(x, weight, groups, dy):
    """Of the naive twin; a matrix without rows has a gradient of zero."""
    y, dx, dw = pulled(grouped_product_naive, x, weight, groups, dy) if groups.ends[-1] else (None, None, None)
    zeros = (x.new_zeros(len(x), F), torch.zeros_like(x), torch.zeros_like(weight))
    return zeros if y is None else (y, zeros[1] if dx is None else dx, zeros[2] if dw is None else dw)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("way", ["loop", "kernel of the CPU", "stand-in"])
def test_products_and_gradients_by_definition(counts, way, garbage, monkeypatch):
    dtype = torch.float32 if way == "kernel of the CPU" else torch.float64
    x, weight, dy, ends = case(counts, dtype)
    if way == "stand-in":
        monkeypatch.setattr(torch, "_grouped_mm", stand_in)
    groups = Groups(ends, counts if way == "loop" else None)
    expected = by_definition(x, weight, groups, dy)
    for one, other in zip(pulled(grouped_product, x, weight, groups, dy), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)
    with torch.no_grad():
        torch.testing.assert_close(grouped_product(x, weight, groups), expected[0], rtol=0, atol=1e-5)


def test_the_kernel_takes_rows_that_stand_in_columns_and_none(monkeypatch):
    monkeypatch.setattr(torch, "_grouped_mm", stand_in)
    x, weight, dy, ends = case([3, 1], torch.float64)
    groups, columns = Groups(ends, None), x.t().contiguous().t()
    for one, other in zip(
        pulled(grouped_product, columns, weight, groups, dy),
        pulled(grouped_product, x, weight, groups, dy),
        strict=True,
    ):
        assert torch.equal(one, other)
    y, dx, dw = pulled(grouped_product, x[:0], weight, Groups(torch.zeros_like(ends), None), dy[:0])
    assert y.shape == (0, F)
    assert dx.shape == (0, D)
    assert not dw.any()


@pytest.mark.parametrize(
    ("shape", "dtype", "capability", "expected"),
    [
        ((8, 16, 24), torch.bfloat16, (9, 0), True),
        ((8, 16, 24), torch.bfloat16, (10, 0), True),
        ((8, 16, 24), torch.bfloat16, (8, 0), False),
        ((8, 16, 24), torch.bfloat16, (12, 0), False),
        ((8, 16, 24), torch.float16, (9, 0), False),
        ((8, 12, 24), torch.bfloat16, (9, 0), False),
        ((1024, 16, 24), torch.bfloat16, (9, 0), False),
    ],
)
def test_where_there_is_one_kernel(shape, dtype, capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    x = SimpleNamespace(is_cuda=True, device="cuda")
    assert has_kernel(x, torch.empty(shape, device="meta"), dtype) == expected
    assert not has_kernel(torch.empty(1), torch.empty(shape, device="meta"), dtype)


LAYERS = [
    {"n_experts": 4, "expert": {"use": "gated_mlp", "width": 16}},
    {
        "n_experts": 8,
        "expert": {"use": "mlp", "width": 8, "bias": True},
        "router": {"use": "switch", "capacity_factor": 0.5},
    },
    {"n_experts": 4, "expert": {"use": "mlp", "width": 8}, "router": {"use": "soft_mixture", "slots": 2}},
]


def filled(arguments):
    layer = built(MixtureOfExperts, arguments, LayerContext(d_model=16, vocab_size=4, max_length=32))
    initialise(layer, seed=0)
    return layer


def run(layer, x, real=None):
    """Outputs and all gradients."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    tokens = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
    y = layer(x, Sequence(tokens, real=real).prepare(gather(layer))).y
    (y * x.flip(0)).sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


def products(layer):
    """How many products a pass forward and back has."""
    return 3 * sum(name.startswith("experts") and name.endswith("weight") for name, _ in layer.named_parameters())


@pytest.mark.parametrize("arguments", LAYERS)
@pytest.mark.parametrize("real", [1.0, 0.6, 0.0])
def test_a_layer_by_one_kernel_is_that_of_the_loop(arguments, real, monkeypatch):
    layer, draw = filled(arguments).double(), torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 16, generator=draw, dtype=torch.float64)
    marks = torch.rand(2, 5, generator=draw) < real
    looped, calls = run(layer, x, marks), []
    monkeypatch.setattr(Experts, "_in_one_kernel", lambda experts, x: experts.together)
    monkeypatch.setattr(torch, "_grouped_mm", lambda *args, **kwargs: calls.append(1) or stand_in(*args, **kwargs))
    for one, other in zip(run(layer, x, marks), looped, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert len(calls) == products(layer)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] not in (9, 10),
    reason="the one kernel runs on CUDA GPUs of capability 9 and 10, and there is none",
)
@pytest.mark.parametrize("arguments", LAYERS)
def test_the_kernel_of_a_gpu_is_the_loop_and_waits_for_nothing(arguments, monkeypatch):
    layer, draw = filled(arguments).bfloat16().cuda(), torch.Generator().manual_seed(1)
    x = torch.randn(2, 50, 16, generator=draw).bfloat16().cuda()
    real = (torch.rand(2, 50, generator=draw) < 0.8).cuda()
    run(layer, x, real)  # what is waited for once, the first time
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = run(layer, x, real)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monkeypatch.setattr(Experts, "_in_one_kernel", lambda experts, x: False)
    for one, other in zip(found, run(layer, x, real), strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=0.02 * scale)


@pytest.mark.parametrize("arguments", LAYERS)
def test_one_kernel_never_waits_for_the_device(arguments, half_precision, monkeypatch):
    """Tensors without values, on no CPU: to read one, which would wait on a GPU, is an error."""

    def shapes_alone(a, b, *, offs):
        return a.new_empty(*([len(offs)] if b.ndim == 2 else []), len(a), b.shape[-1])

    monkeypatch.setattr(Experts, "_in_one_kernel", lambda experts, x: experts.together)
    monkeypatch.setattr(torch, "_grouped_mm", shapes_alone)
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())  # knows no device without values
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *args: False)
    with torch.device("meta"):
        layer = built(MixtureOfExperts, arguments, LayerContext(d_model=16, vocab_size=4, max_length=32))
        x = torch.empty(2, 5, 16, requires_grad=True)
        for real in (None, torch.empty(2, 5, dtype=torch.bool)):
            tokens = torch.empty(2, 5, dtype=torch.long)
            result = layer(x, Sequence(tokens, real=real).prepare(gather(layer)))
            result.y.sum().backward()
            assert result.y.is_meta
            if result.aux:
                layer.finish_aux(result.aux)
