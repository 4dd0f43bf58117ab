"""Low-rank adapters: what one use of a shared part adds to its linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from bakeoff.interfaces import init
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext, Shared
from bakeoff.interfaces.part import Part
from bakeoff.parts.linear import Linear, linear_flops

M = TypeVar("M", bound=nn.Module)


class LowRank(Part):
    """`x A^T B_i^T` for each of several linear layers that read the same `x`; B starts at zero.

    Parameters
    ----------
    d_in : width of x. widths : of what each of the layers gives. rank : r; A is (r, d_in), B_i is (widths_i, r).
    """

    reference = Reference(
        "Hu et al.", 2021, "LoRA: Low-Rank Adaptation of Large Language Models", "https://arxiv.org/abs/2106.09685"
    )

    def __init__(self, context: LayerContext, *, d_in: int, widths: Items[int], rank: int):
        super().__init__(context)
        if rank < 1:
            raise ValueError(f"rank of an adapter is {rank}; it must be at least 1")
        self.down = Linear(d_in, rank)
        self.up = nn.ModuleList(Linear(rank, width) for width in widths)

    def reset_parameters(self) -> None:
        """B at zero: an adapter begins as if it were not there."""
        for layer in self.up:
            init.fill(cast(Tensor, layer.weight), init.constant(0.0))

    def flops(self, queries: int, keys: int) -> int:
        """Both products, the first once for all layers."""
        return sum(linear_flops(layer, queries) for layer in (self.down, *self.up))


def low_rank(context: LayerContext, part: nn.Module, paths: Items[str], rank: int) -> LowRank:
    """The adapter of linear layers inside `part`, by their paths.

    Raises `ValueError` for a path that is no linear layer, or for layers that read inputs of different widths.
    """
    layers = {path: _at(part, path) for path in paths}
    widths = {path: layer.in_features for path, layer in layers.items()}
    if len(set(widths.values())) != 1:
        told = ", ".join(f"{path} reads {width} channels" for path, width in widths.items())
        raise ValueError(f"an adapter serves linear layers that read one input: {told or 'none is named'}")
    d_in = next(iter(widths.values()))
    return LowRank(context, d_in=d_in, widths=[layer.out_features for layer in layers.values()], rank=rank)


def adapted(part: M, adapters: Items[tuple[LowRank, Items[str]]]) -> M:
    """A view of `part` for one call, whose linear layers at the given paths add what the adapters give.

    The view shares everything else with `part`, which stays as it is.
    """
    calls: dict[str, nn.Module] = {}
    for adapter, paths in adapters:
        down = _Once(adapter.down)
        calls |= {
            path: _Adapted(part.get_submodule(path), down, up) for path, up in zip(paths, adapter.up, strict=True)
        }
    return _view(part, calls)


class _Once:
    """A layer that is computed once for all that call it with the same input."""

    def __init__(self, layer: nn.Module):
        self.layer, self.x, self.y = layer, None, None

    def __call__(self, x: Any) -> Any:
        if self.x is not x:
            self.x, self.y = x, self.layer(x)
        return self.y


class _Adapted(nn.Module):
    """A linear layer and what is added to it, neither registered here."""

    def __init__(self, layer: nn.Module, down: _Once, up: nn.Module):
        super().__init__()
        self.layer, self.down, self.up = Shared(layer), down, Shared(up)

    @property
    def weight(self) -> Tensor:
        """What the layer's weight amounts to, for parts that use it other than by a call."""
        weights = (layer.weight for layer in (self.layer.module, self.up.module, self.down.layer))
        plain, up, down = (cast(Tensor, weight) for weight in weights)
        return plain + up @ down

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def _view(module: M, calls: Mapping[str, nn.Module]) -> M:
    inside: dict[str, dict[str, nn.Module]] = {}
    for path, call in calls.items():
        name, _, rest = path.partition(".")
        inside.setdefault(name, {})[rest] = call
    children = dict(module._modules)
    for name, inner in inside.items():
        child = children[name]
        assert child is not None
        children[name] = inner[""] if "" in inner else _view(child, inner)
    view = object.__new__(type(module))
    view.__dict__.update(module.__dict__, _modules=children)
    return view


def _at(part: nn.Module, path: str) -> nn.Linear:
    try:
        layer = part.get_submodule(path)
    except AttributeError:
        layer = None
    if not isinstance(layer, nn.Linear):
        known = ", ".join(name for name, inner in part.named_modules() if isinstance(inner, nn.Linear))
        raise ValueError(f"'{path}' is no linear layer that an adapter could serve; there are {known}")
    return layer
