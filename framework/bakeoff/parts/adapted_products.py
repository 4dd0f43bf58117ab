"""A learned product with a low-rank adapter: where W stood, W + s B A stands, and W is as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff.interfaces import init
from bakeoff.interfaces.cut import Cut, held
from bakeoff.interfaces.part import Part
from bakeoff.parts.low_rank import LowRank

#: Who multiplies by `weight`: (x, weight, bias) -> y.
Multiply = Callable[..., Tensor]


class Switch:
    """Whether the adapters of a model take part; all of them share one."""

    def __init__(self) -> None:
        self.on = True


class Factor(nn.Module):
    """One of an adapter's two matrices; of what the weight stacks, one for each."""

    def __init__(self, weight: nn.Parameter, owner: nn.Module, name: str):
        super().__init__()
        self.weight = weight
        self.keep_float32 = ("weight",) if name in getattr(owner, "keep_float32", ()) else ()
        if getattr(owner, "stacked", False):
            self.stacked = True
            for told in ("first", "ranks"):
                if hasattr(owner, told):
                    setattr(self, told, getattr(owner, told))


class Adapter(Part):
    """What is added to a weight W (…, d_out, d_in): s B A, with `up` B (…, d_out, r) and `down` A (…, r, d_in).

    B starts at zero, A as a hidden weight.
    """

    reference = LowRank.reference

    def __init__(self, owner: nn.Module, name: str, *, rank: int, scale: float, dropout: float, switch: Switch):
        nn.Module.__init__(self)
        weight = held(owner, name)
        *stack, d_out, self.d_in = weight.shape
        self.down = Factor(nn.Parameter(weight.new_empty(*stack, rank, self.d_in)), owner, name)
        self.up = Factor(nn.Parameter(weight.new_empty(*stack, d_out, rank)), owner, name)
        self.scale, self.p, self.switch = scale, dropout, switch

    def reset_parameters(self) -> None:
        """The product begins as if there were no adapter."""
        init.fill(self.down.weight, init.normal(self.d_in**-0.5))
        init.fill(self.up.weight, init.constant(0.0))

    def forward(self, y: Tensor, x: Tensor, product: Multiply) -> Tensor:
        """y + s B A x, each product computed as that of the layer; dropout is on x."""
        if not self.switch.on:
            return y
        x = F.dropout(x, self.p, self.training) if self.p else x
        return torch.add(y, product(product(x, self.down.weight), self.up.weight), alpha=self.scale)

    def added_to(self, weight: Tensor) -> Tensor:
        """W + s B A, for who multiplies by the sum; W itself where it is filled, or is not whole and so not used."""
        if not self.switch.on or (not torch.compiler.is_compiling() and init.filling()) or hasattr(weight, "to_local"):
            return weight
        with nullcontext() if weight.is_meta else torch.autocast(weight.device.type, enabled=False):
            return weight + self.scale * (self.up.weight @ self.down.weight)


def adapt(owner: nn.Module, names: tuple[str, ...], **settings: Any) -> None:
    """Give parameters of a module an adapter each, in place; `settings` are those of `Adapter`.

    Parameters keep their names. Who reads the attribute gets the sum; a layer that is called, and can multiply by other
    weights in the place of its own (`product`), adds B A x to its result and forms none.
    """
    for name in names:
        owner.add_module(_child(name), Adapter(owner, name, **settings))
    owner.__class__ = _adapted(type(owner), names)  # type: ignore[arg-type]


def adapters_of(owner: nn.Module) -> Iterator[tuple[str, Adapter]]:
    """The names of a module's own parameters that have adapters, and these."""
    for name in owner._parameters:
        adapter = owner._modules.get(_child(name))
        if isinstance(adapter, Adapter):
            yield name, adapter


def following(owner: nn.Module, name: str, cut: Cut) -> Iterator[tuple[str, nn.Module]]:
    """Path and module of the factors whose `weight` is to be cut as a parameter of `owner` is: of a cut by what comes
    out, B; by what is summed over, A; by what is stacked, both."""
    adapter = dict(adapters_of(owner)).get(name)
    if adapter is not None:
        place = held(owner, name).ndim - cut.dim
        yield from ((f"{_child(name)}.up", adapter.up),) if place > 1 else ()
        yield from ((f"{_child(name)}.down", adapter.down),) if place != 2 else ()


def _child(name: str) -> str:
    return "adapter" if name == "weight" else f"{name}_adapter"


@cache
def _adapted(cls: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The class whose parameters of these names read as what they amount to; it goes by the same name."""
    body: dict[str, Any] = {name: property(_amount(name)) for name in names}
    body |= {word: getattr(cls, word) for word in ("__module__", "__qualname__", "__doc__")}
    if names == ("weight",) and _multiplies(cls):
        body["forward"] = _apart
        body |= {} if hasattr(cls, "product") else {"product": staticmethod(F.linear)}
    return type(cls.__name__, (cls,), body)


def _amount(name: str) -> Callable[[nn.Module], Tensor]:
    child = _child(name)
    return lambda owner: owner._modules[child].added_to(owner._parameters[name])  # type: ignore[union-attr, operator]


def _multiplies(cls: type[nn.Module]) -> bool:
    """Whether a layer's forward is a product with `weight` and no more, so that other weights can take its place."""
    if cls.forward is nn.Linear.forward:
        return True
    owner = next((base for base in cls.__mro__ if "product" in vars(base)), None)
    return owner is not None and cls.forward is owner.forward  # type: ignore[attr-defined]


def _apart(self: Any, x: Tensor) -> Tensor:
    """(..., d_in) -> (..., d_out)."""
    y = self.product(x, self._parameters["weight"], self.bias)
    return self.adapter(y, x, self.product)
