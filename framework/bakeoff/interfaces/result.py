"""What a part returns."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Result(NamedTuple):
    """Outcome of one call of a mixer, feed-forward, block or backbone.

    `y` is (B, T, D). `state` is given if and only if a state was given. `aux` holds additive tensors: sums over real
    tokens, and their count. `memory` holds values shown to later blocks.
    """

    y: Tensor
    state: Any = None
    aux: Mapping[str, Tensor] = _NOTHING
    memory: Mapping[str, Any] = _NOTHING
