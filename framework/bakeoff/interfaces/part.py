"""The base of every part of a model: a module that knows its needs, claims, roles and cost."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.component import Capabilities, Component
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.cut import Cut
from bakeoff.interfaces.sequence import Need, Sequence

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Part(nn.Module, Component):
    """A component that is a module. Parameters are created empty in `__init__` and filled in `reset_parameters`."""

    capabilities: Capabilities = Capabilities()
    roles: ClassVar[Mapping[str, str]] = {}
    """Role of the parameters that stand directly in this module, where the rule by shape does not give it."""
    keep_float32: ClassVar[Items[str]] = ()
    """Direct parameters and buffers that stay float32 under lower precision and sharding."""
    reads: ClassVar[Items[str]] = ()
    """Names of what this part reads of the memory that earlier layers show, (B, T, D) each."""
    neighbours_of: int | None = None
    """Tokens of a chunk, where this part reads the neighbours of chunks (`interfaces.neighbours`) from the memory."""

    def __init__(self, context: LayerContext):
        super().__init__()

    def reset_parameters(self) -> None:
        """Fill own parameters and buffers through `init.fill`; what has a role has been filled by the scheme before."""

    def needs(self) -> Items[Need]:
        """What this part (children speak for themselves) reads from the sequence by `sequence[need]`."""
        return ()

    def spread(self, mesh: DeviceMesh) -> None:
        """Keep this rank's share of what a dimension of `mesh` shares out, such as experts; parts within do so too."""

    def parallel_plan(self, ranks: int) -> Mapping[str, Cut]:
        """How `ranks` that work on this part together share out its parameters and buffers, by path within it.

        Asked of parts that claim `tensor_parallel`; parts within speak for themselves. Each rank gets the whole of `x`
        and computes with its share, such as some of the heads; what it gives is summed over the ranks. What the plan
        leaves out stands whole on each rank, and its gradients are summed.
        Raises `ValueError` with both numbers and the rule where sizes do not divide.
        """
        return {}

    def narrow(self, ranks: DeviceMesh) -> None:
        """Take down sizes that are kept in attributes: parameters have just been shared out among `ranks`."""

    def flops(self, queries: int, keys: int) -> int:
        """Multiply-add work, two per pair, of one row's forward: its last `queries` tokens, `keys` tokens in all.

        Matrix products and convolutions only; attention counts visible pairs. Backward is twice the forward.
        """
        raise CapabilityError(f"{type(self).__name__} declares no cost: define flops(queries, keys)")

    def idle(self) -> int:
        """How many parameters of this part (parts within it speak for themselves) one token does not use: of experts,
        those of all that it is not sent to."""
        return 0

    def finish_aux(self, sums: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Losses and statistics from the `aux` sums of a whole step, once per layer."""
        return {}, {}

    def after_step(self, statistics: Mapping[str, Tensor]) -> None:
        """Update what learns by rule and not by gradient, after an optimizer step; a part that is frozen does not."""


class StatefulPart(Part):
    """A part that may carry a state from call to call."""

    reach: int = 0
    """How many tokens of a state that grows under gradients a later token sees, where these are a fixed number."""

    def empty_state(
        self,
        batch: int,
        max_length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Any:
        """A state with nothing in it, for `batch` rows of at most `max_length` tokens.

        Refused by default: a part without a state can be trained and evaluated, not decoded.
        """
        raise CapabilityError(
            f"{type(self).__name__} keeps no state, so it cannot decode token by token: define empty_state, "
            "or use a mixer whose capabilities claim `state` (bakeoff list --kind mixer)"
        )

    def naive(self, x: Tensor, sequence: Sequence, state: Any = None) -> Any:
        """The same call by the plainest formula, such as a loop over tokens; by default `forward` itself.

        The conformance kit compares the two (law 6) and counts this one's products (law 8).
        """
        return self(x, sequence, state)
