"""Products of few rows are the products of linear layers."""

import pytest
import torch
from bakeoff.parts.linear import Linear
from bakeoff.parts.products import product_of_few
from torch import nn


@pytest.mark.parametrize("shape", [(1, 1), (8, 1), (1, 3), (7,), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_rows_give_the_product(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(*shape, 48, dtype=dtype), torch.randn(96, 48, dtype=dtype)
    torch.testing.assert_close(product_of_few(x, weight), x @ weight.t())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 200])
def test_a_layer_gives_the_same_with_gradients_and_without(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = Linear(128, 512, bias=bias)
    nn.init.normal_(layer.weight)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    x = torch.randn(rows, 1, 128)
    with torch.no_grad():
        plain = layer(x)
    torch.testing.assert_close(plain, layer(x))
    torch.testing.assert_close(plain, nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("bias", [False, True])
def test_many_rows_give_the_product_and_its_gradients(bias: bool) -> None:
    torch.manual_seed(0)
    layer = Linear(256, 192, bias=bias)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 200, 256, requires_grad=True)
    inputs = [x, *layer.parameters()]
    ours, theirs = layer(x), nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    dy = torch.randn(192).expand_as(ours)
    for mine, other in zip(torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(theirs, inputs, dy), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)
    layer.weight.requires_grad_(False)
    (alone,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(alone, layer.weight.sum(0).expand_as(x), rtol=1e-5, atol=1e-4)


def test_many_rows_are_differentiated_twice() -> None:
    torch.manual_seed(0)
    layer = Linear(256, 192)
    nn.init.normal_(layer.weight, std=1 / 16)
    x, v = torch.randn(2, 200, 256, requires_grad=True), torch.randn(2, 200, 256)

    def curvature(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad((slope * v).sum(), [x, layer.weight])

    ours, theirs = curvature(layer(x)), curvature(nn.functional.linear(x, layer.weight))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))
