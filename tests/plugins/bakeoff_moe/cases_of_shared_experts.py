"""What ranks compute together that have other experts, and other parts of each: beside one process that has all."""

from __future__ import annotations

import copy
from typing import Any

import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.cut import Share, shares_of
from bakeoff.interfaces.init import initialise
from bakeoff.model.spreading import spread
from bakeoff.parallel.layout import is_spread
from bakeoff.parallel.tensor import Stream, share_out, work_together
from bakeoff.testing.build import built
from bakeoff.testing.values import jitter
from bakeoff_moe import MixtureOfExperts
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh

D, E, T = 8, 4, 6


def layer(arguments: dict[str, Any]) -> MixtureOfExperts:
    """A mixture with random values everywhere, in float64."""
    part = built(MixtureOfExperts, {"n_experts": E, **arguments}, LayerContext(d_model=D, vocab_size=9, max_length=T))
    initialise(part, seed=3)
    jitter(part, 4)
    return part.double()


def run(part: nn.Module, x: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and gradients by the input; those of parameters are left in them."""
    x = x.clone().requires_grad_()
    result = part(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long)))
    ((result.y * pull).sum() + 0.1 * sum(v.sum() for v in result.aux.values() if v.requires_grad)).backward()
    return result.y.detach(), x.grad


def layer_equals_one(arguments: dict[str, Any]) -> None:
    """Two ranks along `expert`, each with rows of its own, times two along `tensor`: outputs and all gradients."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("expert", "tensor"))
    whole = layer(arguments)
    part = copy.deepcopy(whole)
    spread(part, mesh)
    shares: dict[int, Share] = {}
    share_out(part, mesh["tensor"], shares)
    work_together(part, Stream(mesh["tensor"]))
    draw = torch.Generator().manual_seed(5)
    x, pull = (torch.randn(4, T, D, generator=draw, dtype=torch.float64) for _ in range(2))
    own = mesh["expert"].get_local_rank()
    home = slice(0, 1) if own == 0 else slice(1, 4)
    y, dx = run(whole, x, pull)
    own_y, own_dx = run(part, x[home], pull[home])
    torch.testing.assert_close(own_y, y[home], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(own_dx, dx[home], rtol=1e-10, atol=1e-12)
    expected = dict(whole.named_parameters())
    for name, parameter in part.named_parameters():
        gradient, (path, _, last) = expected[name].grad, name.rpartition(".")
        owner = part.get_submodule(path)
        cut = shares_of(owner).get(last)
        if is_spread(owner):
            gradient = gradient[own * E // 2 : (own + 1) * E // 2]
        else:
            distributed.all_reduce(parameter.grad, group=mesh["expert"].get_group())
        if cut is None:
            distributed.all_reduce(parameter.grad, group=mesh["tensor"].get_group())
        torch.testing.assert_close(
            parameter.grad,
            gradient if cut is None else cut.of(gradient),
            rtol=1e-9,
            atol=1e-11,
            msg=lambda told, name=name: f"{name}: {told}",
        )
    cuts = [name for name, p in part.named_parameters() if id(p) in shares]
    assert any(name.startswith("experts") for name in cuts)
