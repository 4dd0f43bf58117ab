"""Where the inner width of a feed-forward stands in its weights."""

from __future__ import annotations

from bakeoff.errors import UserError
from bakeoff.parts.linear import Linear
from torch import nn


def inner_dimensions(feed_forward: nn.Module) -> dict[str, int | None]:
    """Name -> the dimension of a weight that is the inner width; None for one that does not have it.

    It is that of the rows of linear layers, and of the columns of those that write into the residual stream.
    Raises `UserError` where the layers do not agree on one width.
    """
    inner_width(feed_forward)
    return {name: dimension for name, dimension, _ in _found(feed_forward)}


def inner_width(feed_forward: nn.Module) -> int:
    """The inner width F of a feed-forward of linear layers D -> F and F -> D; `UserError` if it has none."""
    widths = {width for _, dimension, width in _found(feed_forward) if dimension is not None}
    learnt = {name for name, _ in feed_forward.named_parameters()}
    if len(widths) != 1 or learnt != {name for name, _, _ in _found(feed_forward)}:
        raise UserError(f"{type(feed_forward).__name__} has no one inner width, by which its weights could be divided")
    return widths.pop()


def _found(feed_forward: nn.Module) -> list[tuple[str, int | None, int]]:
    found: list[tuple[str, int | None, int]] = []
    for name, layer in feed_forward.named_modules():
        if isinstance(layer, Linear):
            output = layer.roles["weight"] == "output"
            width = layer.in_features if output else layer.out_features
            found.append((f"{name}.weight", 1 if output else 0, width))
            if layer.bias is not None:
                found.append((f"{name}.bias", None if output else 0, width))
    return found
