"""Norms: the size of the output does not follow the size of the input."""

from __future__ import annotations

import torch
from torch import Tensor

from bakeoff.testing.build import D_MODEL
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law

#: How much larger the input is made, and how much larger the output may then be.
_LARGER, _MAY_GROW = 1000.0, 2.0


@law(None, "scale", "norm")
def scale(candidate: Candidate) -> None:
    """Each vector alone, to a size that hardly depends on its own; shape and type kept; zeros give finite numbers."""
    norm = candidate.filled(jittered=False).part
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 3, D_MODEL, generator=candidate.generator()).to(dtype)
        y = norm(x)
        if y.shape != x.shape or y.dtype != x.dtype:
            raise Broken(f"x is {tuple(x.shape)} {x.dtype}, y is {tuple(y.shape)} {y.dtype}")
        grown = _size(norm(x * _LARGER)) / _size(y)
        if not grown <= _MAY_GROW:
            raise Broken(f"{dtype}: inputs {_LARGER:g} times as large give outputs {grown:.3g} times as large")
    zeros = torch.zeros(1, D_MODEL, requires_grad=True)
    (slope,) = torch.autograd.grad(norm(zeros).sum(), zeros)
    if not bool(norm(zeros).isfinite().all() and slope.isfinite().all()):
        raise Broken("an input of zeros gives an output or gradient that is not finite")
    x = torch.randn(4, D_MODEL, generator=candidate.generator())
    if not torch.allclose(norm(x)[1:], norm(x[1:]), atol=1e-6):
        raise Broken("T=4, token 0 removed: another output moved; a norm sees one vector at a time")


def _size(y: Tensor) -> float:
    return float(y.detach().float().square().mean().sqrt())
