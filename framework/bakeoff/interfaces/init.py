"""Initialisation by name: a parameter's first value depends on (seed, qualified name) and nothing else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from bakeoff.interfaces.cut import held, local, shares_of
from bakeoff.interfaces.part import Part

#: (shape, generator) -> the whole tensor, float32
Filler = Callable[[torch.Size, torch.Generator], Tensor]


class _Naming:
    def __init__(self, module: nn.Module, seed: int):
        self.seed = seed
        self.names = {id(t): name for name, t in module.named_parameters()}
        self.names |= {id(t): name for name, t in module.named_buffers()}
        self.first = {
            id(t): getattr(owner, "first", 0)
            for owner in module.modules()
            if getattr(owner, "stacked", False)
            for t in owner.parameters(recurse=False)
        }
        self.shares = {
            id(held(owner, name)): share for owner in module.modules() for name, share in shares_of(owner).items()
        }


_naming: ContextVar[_Naming] = ContextVar("naming")


def normal(std: float, mean: float = 0.0) -> Filler:
    """Gaussian values."""
    return lambda shape, generator: torch.empty(shape).normal_(mean, std, generator=generator)


def uniform(low: float, high: float) -> Filler:
    """Values uniform in [low, high)."""
    return lambda shape, generator: torch.empty(shape).uniform_(low, high, generator=generator)


def step_sizes(low: float, high: float) -> Filler:
    """Values whose softplus is log-uniform in [low, high): step sizes of state-space models."""

    def fill(shape: torch.Size, generator: torch.Generator) -> Tensor:
        dt = uniform(math.log(low), math.log(high))(shape, generator).double().exp()
        return (dt + torch.log(-torch.expm1(-dt))).float()

    return fill


def constant(value: float) -> Filler:
    """One value everywhere."""
    return lambda shape, generator: torch.full(shape, float(value))


def exactly(values: Tensor) -> Filler:
    """Given values."""
    return lambda shape, generator: values.expand(shape)


def generator(seed: int, name: str) -> torch.Generator:
    """The generator of one named tensor."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def fill(tensor: Tensor, filler: Filler) -> None:
    """Draw the whole tensor by (seed, qualified name) and copy what of it is here into `tensor`; inside `initialise`.

    Of stacked things, each is drawn alone, by (seed, qualified name, index): it does not depend on how many there are,
    nor on which of them this process holds.
    """
    naming = _naming.get()
    name, first, share = naming.names[id(tensor)], naming.first.get(id(tensor)), naming.shares.get(id(tensor))
    shape = tensor.shape if share is None else share.whole(tensor.shape)
    here, start = local(tensor)
    with torch.no_grad():
        if first is None:
            drawn = filler(shape, generator(naming.seed, name))
            drawn = drawn if share is None else share.of(drawn)
            here.copy_(drawn[start : start + len(here)] if here.ndim else drawn)
            return
        share = share and replace(share, dim=share.dim - 1)
        for i, one in enumerate(here, first + start):
            drawn = filler(shape[1:], generator(naming.seed, f"{name}.{i}"))
            one.copy_(drawn if share is None else share.of(drawn))


def filling() -> bool:
    """Whether `initialise` is at work: what a part then reaches for is the parameter itself."""
    return _naming.get(None) is not None


def roles(module: nn.Module) -> dict[str, str]:
    """Role of every parameter by qualified name; a shared parameter stands once, under its first name.

    Where a module's attribute `stacked` is true, the first dimension of its own parameters counts alike things, such as
    experts; it holds those from index `first` on, 0 by default, and `ranks`, where it is not None, hold the others.
    Roles: embedding, input, hidden, output (writes into the residual stream), readout, gate, vector (fewer than two
    dimensions: gains, biases, decay rates). A part names those that its shape does not tell in `roles`.
    """
    found: dict[str, str] = {}
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        named, stacked = getattr(owner, "roles", None) or {}, getattr(owner, "stacked", False)
        for name, parameter in owner.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            by_shape = "embedding" if isinstance(owner, nn.Embedding) else "hidden"
            by_shape = "vector" if parameter.ndim - stacked < 2 else by_shape
            found[f"{prefix}.{name}" if prefix else name] = named.get(name, by_shape)
    return found


def initialise(module: nn.Module, *, seed: int, depth: int = 1) -> None:
    """Fill all parameters: the scheme by role, then children's `reset_parameters`, then a part's own.

    The scheme leaves out what stands directly in a part that gives it no role in `roles`: the part fills it.
    Scheme: matrices normal with standard deviation 1/sqrt(fan-in), the width D for embeddings and readouts, divided by
    sqrt(2 depth) for role "output"; biases zero; other vectors one.
    Raises `ValueError` naming the parameters that are left unfilled.
    """
    token = _naming.set(_Naming(module, seed))
    try:
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.is_floating_point():
                    local(parameter)[0].fill_(math.nan)
        kinds = roles(module)
        own = _left_to_parts(module)
        for name, parameter in module.named_parameters():
            if name not in own:
                fill(parameter, _scheme(name, kinds[name], depth))
        _reset(module)
    finally:
        _naming.reset(token)
    if any(map(is_fake, module.parameters())):  # a plan, which has shapes and no values
        return
    unfilled = [name for name, parameter in module.named_parameters() if bool(local(parameter)[0].isnan().any())]
    if unfilled:
        raise ValueError(f"left unfilled by initialisation: {', '.join(unfilled)}")


def _left_to_parts(module: nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, owner in module.named_modules()
        if isinstance(owner, Part)
        for name, _ in owner.named_parameters(recurse=False)
        if name not in owner.roles
    }


def _scheme(name: str, role: str, depth: int) -> Filler:
    """What fills a parameter, or one of those that it stacks."""

    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        if len(shape) < 2:
            filler = constant(0.0 if name.rpartition(".")[2].endswith("bias") else 1.0)
        else:
            fan_in = math.prod(shape[1:])
            filler = normal(fan_in**-0.5 / (math.sqrt(2 * depth) if role == "output" else 1.0))
        return filler(shape, generator)

    return draw


def _reset(module: nn.Module) -> None:
    for child in module.children():
        _reset(child)
    if isinstance(module, Part):
        module.reset_parameters()
