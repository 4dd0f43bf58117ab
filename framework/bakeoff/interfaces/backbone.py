"""Kind `backbone`: what turns tokens into hidden states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence


class Backbone(StatefulPart):
    """Tokens of a `Sequence` -> hidden states (B, T, D). `empty_state` gives its whole state, `past` included."""

    kind = "backbone"
    reads_again: bool = False
    """Embeds tokens more than once, such as those of earlier calls, or others than the sequence's."""

    @abstractmethod
    def forward(self, sequence: Sequence, state: Any = None) -> Result:
        """Hidden states of `sequence.tokens`; `sequence.past` must be `state.past` where a state is given."""

    @property
    @abstractmethod
    def embedding(self) -> nn.Parameter:
        """The (V, D) input embedding, which a tied head shares."""

    @property
    @abstractmethod
    def layers(self) -> nn.ModuleList:
        """The blocks in order."""

    @property
    def stream(self) -> list[nn.Module]:
        """What works on the residual stream, token by token or by parts: the blocks, and norms after them."""
        return [self.layers]

    @property
    def shared_parts(self) -> list[nn.Module]:
        """What layers share on purpose."""
        return []

    def carry(self, state: Any) -> Any:
        """The state after a training window as the beginning of the next: of constant size, and detached."""
        raise CapabilityError(
            f"{type(self).__name__} carries no state from window to window: define carry(state), "
            "or set trainer.stateful: false"
        )

    def layer_losses(self, aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Auxiliary losses of the layers, each averaged over the layers that report it."""
        return {}

    def layer_statistics(self, aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the layers tell of a whole optimizer step, from the sums of its `aux`: scalars and vectors, each under
        the number of its layer and its name there, as in `3.feed_forward.load`. `after_step` is shown them."""
        return {}
