"""Low-rank adapters (LoRA) on the learned products of a model, and what one does with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bakeoff.interfaces import init
from bakeoff.interfaces.cut import held
from bakeoff.parts.adapted_products import Adapter, Switch, adapt, adapters_of
from bakeoff.parts.patterns import chosen

#: Roles of parameters that nothing is multiplied by.
NO_PRODUCT = ("vector", "embedding")


class Adapters:
    """Beside a weight W of a product, s B A of rank r is learnt, with B at zero in the beginning (Hu et al., 2021).

    A product is called as the layer that holds its weight, such as `backbone.blocks.0.mixer.query`, or as the weight
    where that is called other than `weight`. What is multiplied by is every matrix whose role is neither vector nor
    embedding: linear layers, experts, block-diagonal gates, recurrences.

    Parameters
    ----------
    rank : r. scale : s, which is alpha / r in the paper's words.
    on : patterns of the products' names, as in `trained`; null: all of the backbone.
    roles : of which roles, such as input, hidden, output, gate, readout; null: all that `on` names.
    dropout : of what a product is given, on its way to A. Who reads the weight itself (a recurrence, a router, the
        absorbed form of latent attention) has none.
    """

    def __init__(
        self,
        *,
        rank: int = 8,
        scale: float = 2.0,
        on: list[str] | None = None,
        roles: list[str] | None = None,
        dropout: float = 0.0,
    ):
        if rank < 1:
            raise ValueError(f"rank is {rank}; it must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; it must lie in 0 <= dropout < 1")
        for name, given in {"on": on, "roles": roles}.items():
            if given == []:
                raise ValueError(f"{name} is empty, so nothing would be adapted; name some, or write null for all")
        self.rank, self.scale, self.dropout = rank, scale, dropout
        self.on, self.roles = on, roles

    def add_to(self, model: nn.Module) -> None:
        """Give the chosen products of a model, on any device, their adapters, in place.

        Raises `ValueError` for patterns and roles that choose none, with the nearest names or the reason.
        """
        if has_adapters(model):
            raise ValueError("the model has adapters already; merge them first")
        names: dict[nn.Module, list[str]] = defaultdict(list)
        for product in self._chosen(model):
            names[product.owner].append(product.name)
        switch = Switch()
        for owner, own in names.items():
            adapt(owner, tuple(own), rank=self.rank, scale=self.scale, dropout=self.dropout, switch=switch)

    def _chosen(self, model: nn.Module) -> list[Product]:
        able, others = _products(model)
        names: set[str] = set()
        for pattern in ["backbone.*"] if self.on is None else self.on:
            here = {name for name in able if fnmatchcase(name, pattern)}
            barred = next((name for name in others if fnmatchcase(name, pattern)), None)
            if barred is not None and not here:
                raise ValueError(f"on: '{pattern}' chooses nothing: {barred} {others[barred]}")
            names |= here or _named(pattern, able)
        for role in self.roles or ():
            if role not in {able[name].role for name in names}:
                known = ", ".join(sorted({able[name].role for name in names}))
                raise ValueError(f"roles: of what is chosen nothing has role '{role}'; there are {known}")
        return [able[name] for name in able if name in names and able[name].role in (self.roles or [able[name].role])]


class Product(NamedTuple):
    """A weight that is multiplied by: the parameter `name` of `owner`."""

    owner: nn.Module
    name: str
    role: str


def has_adapters(model: nn.Module) -> bool:
    """Whether any product of a model has an adapter."""
    return any(isinstance(module, Adapter) for module in model.modules())


@contextmanager
def without(model: nn.Module) -> Iterator[None]:
    """Inside, a model computes as it would without its adapters: the weights that it began with, with no second copy.

    Raises `ValueError` for a model that has none.
    """
    switches = switches_of(model)
    if not switches:
        raise ValueError("the model has no adapters, so there is nothing that could be left out; see has_adapters")
    with switched(switches, [False] * len(switches)):
        yield


@contextmanager
def switched(switches: Iterable[Switch], on: Iterable[bool]) -> Iterator[None]:
    """Inside, adapters take part or do not; afterwards they are as they were."""
    switches = list(switches)
    before = [switch.on for switch in switches]
    for switch, now in zip(switches, on, strict=True):
        switch.on = now
    try:
        yield
    finally:
        for switch, then in zip(switches, before, strict=True):
            switch.on = then


def switches_of(model: nn.Module) -> list[Switch]:
    """What switches the adapters of a model: one, unless they were added to parts of it."""
    found = (module.switch for module in model.modules() if isinstance(module, Adapter))
    return list(dict.fromkeys(found))


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of all adapters, by their names in the model."""
    return {
        f"{prefix}.{name}" if prefix else name: parameter
        for prefix, module in model.named_modules()
        if isinstance(module, Adapter)
        for name, parameter in module.named_parameters()
    }


@torch.no_grad()
def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state of the same model without adapters, whose weights are the sums; rounded once, to the weight's type."""
    apart = adapter_parameters(model)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in apart}
    for prefix, module in model.named_modules():
        for name, adapter in adapters_of(module):
            path = f"{prefix}.{name}" if prefix else name
            product = adapter.up.weight.double() @ adapter.down.weight.double()
            state[path] = (state[path].double() + adapter.scale * product).to(state[path].dtype)
    return state


def _products(model: nn.Module) -> tuple[dict[str, Product], dict[str, str]]:
    """What can be adapted, by name; and of other parameters, why they cannot be."""
    able: dict[str, Product] = {}
    others: dict[str, str] = {}
    roles, owners = init.roles(model), _owners(model)
    for prefix, owner in model.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            path = f"{prefix}.{name}" if prefix else name
            called = prefix if name == "weight" and prefix else path
            product = Product(owner, name, roles.get(path, ""))
            reason = _barred(product, [each for each in owners[id(parameter)] if each != prefix])
            if reason is None:
                able[called] = product
            else:
                others[called] = reason
    return able, others


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """The modules that a parameter stands in, by its id."""
    found: dict[int, list[str]] = defaultdict(list)
    for prefix, owner in model.named_modules():
        for parameter in owner.parameters(recurse=False):
            found[id(parameter)].append(prefix)
    return found


def _barred(product: Product, sharing: list[str]) -> str | None:
    """Why a parameter is given no adapter, if so; `sharing` are the other modules that hold it."""
    owner, parameter = product.owner, held(product.owner, product.name)
    if product.role in NO_PRODUCT or parameter.ndim - getattr(owner, "stacked", False) < 2:
        return f"is no learned product: its role is {product.role}"
    if sharing:
        return f"shares its weight with {sharing[0]}, which would change with it (see model.tied_embedding)"
    if not parameter.requires_grad:
        return "is frozen by the part that it belongs to"
    if not getattr(owner, "adaptable", True):
        return "stands in experts that are no linear layers, which adapters do not reach"
    return None


def _named(pattern: str, able: Iterable[str]) -> set[str]:
    """As `chosen`, which has to refuse."""
    try:
        return chosen([pattern], able)
    except ValueError as error:
        raise ValueError(f"on: {error}") from None
