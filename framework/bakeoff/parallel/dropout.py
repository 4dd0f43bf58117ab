"""Dropout on a stream that ranks share out, as it would be on the whole."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff.errors import CapabilityError
from bakeoff.parts.adapted_products import Adapter


class SharedDropout(nn.Dropout):
    """Draws for all tokens of a row, so that a token's noise does not depend on where it stands.

    Parameters
    ----------
    take : this rank's of the whole (B, T, D). length : T.
    """

    def __init__(self, p: float, take: Callable[[Tensor], Tensor], length: Callable[[], int]):
        super().__init__(p)
        self.take, self.length = take, length

    def forward(self, x: Tensor) -> Tensor:
        """(B, own T, D) -> (B, own T, D)."""
        if not self.training or not self.p:
            return x
        return x * self.take(F.dropout(x.new_ones(x.shape[0], self.length(), x.shape[2]), self.p))


def share_dropout(module: nn.Module, take: Callable[[Tensor], Tensor], length: Callable[[], int]) -> None:
    """Let every dropout in a module be one on the whole, of which `take` gives this rank's; also a second time."""
    for owner in list(module.modules()):
        for name, child in owner.named_children():
            if isinstance(child, SharedDropout):
                first = child.take
                child.take = lambda x, first=first: take(first(x))  # type: ignore[misc]
            elif type(child) is nn.Dropout:
                setattr(owner, name, SharedDropout(child.p, take, length))


def refuse_dropout(model: nn.Module, dimension: str) -> None:
    """Raise `CapabilityError` where adapters would draw noise for a rank's share of what they are given."""
    dropout = next((module.p for module in model.modules() if isinstance(module, Adapter) and module.p), 0.0)
    if dropout:
        raise CapabilityError(
            f"adapters.dropout is {dropout}, and a mesh with {dimension} over 1 gives each rank a share of what it is "
            f"drawn for; write adapters.dropout: 0, or give the ranks to the mesh's data or shard"
        )
