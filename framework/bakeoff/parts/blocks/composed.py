"""What blocks made of one mixer and one feed-forward have in common; how they are wired is each block's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bakeoff.interfaces.block import Block
from bakeoff.interfaces.component import Capabilities
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.feed_forward import FeedForward
from bakeoff.interfaces.mixer import SequenceMixer
from bakeoff.interfaces.norm import Norm
from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.norms import RMSNorm

MixerFactory = Callable[[LayerContext], SequenceMixer]
FeedForwardFactory = Callable[[LayerContext], FeedForward]
NormFactory = Callable[[LayerContext], Norm]


class Calls:
    """The calls of a block's parts in one forward: hands each its state, gathers what they return."""

    def __init__(self, sequence: Sequence, state: Mapping[str, Any] | None):
        self.sequence, self.before = sequence, state
        self.after: dict[str, Any] = {}
        self.aux: dict[str, Tensor] = {}
        self.memory: dict[str, Any] = {}

    def __call__(self, name: str, part: Callable[..., Result], x: Tensor) -> Tensor:
        result = part(x, self.sequence, None if self.before is None else self.before[name])
        self.after[name] = result.state
        self.memory.update(result.memory)
        self.aux.update({f"{name}.{key}": value for key, value in result.aux.items()})
        return result.y

    def result(self, y: Tensor) -> Result:
        """The block's result, with the states, sums and memories of its parts."""
        return Result(y, None if self.before is None else self.after, self.aux, self.memory)


class ComposedBlock(Block):
    """A block of a mixer, a feed-forward, or both; its state is one entry a part."""

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory | None,
        feed_forward: FeedForwardFactory | None,
        dropout: float,
    ):
        super().__init__(context)
        if mixer is None and feed_forward is None:
            raise ValueError("a block needs a mixer or a feed_forward; both are null")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; it must lie in 0 <= dropout < 1")
        self.mixer = None if mixer is None else mixer(context)
        self.feed_forward = None if feed_forward is None else feed_forward(context)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both parts, and either alone; with dropout once."""
        mixer = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
        return [
            {"mixer": mixer, "feed_forward": {"use": "mlp"}, "dropout": 0.2},
            {"mixer": mixer, "feed_forward": None},
            {"mixer": None, "feed_forward": {"use": "mlp"}},
        ]

    @staticmethod
    def norm_of(part: StatefulPart | None, norm: NormFactory, context: LayerContext) -> nn.Module:
        """The norm of a part's branch, or nothing where the part is null."""
        return nn.Identity() if part is None else norm(context)

    @property
    def inner(self) -> dict[str, StatefulPart]:
        """The parts that are there, by name."""
        pairs = {"mixer": self.mixer, "feed_forward": self.feed_forward}
        return {name: part for name, part in pairs.items() if part is not None}

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What all parts can do."""
        first, *others = (part.capabilities for part in self.inner.values())
        return first.meet(*others)

    def empty_state(
        self,
        batch: int,
        max_length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> dict[str, Any]:
        """The empty states of the parts, by name."""
        return {name: part.empty_state(batch, max_length, dtype, device) for name, part in self.inner.items()}

    def flops(self, queries: int, keys: int) -> int:
        """The parts' work; norms, dropout and additions are not counted."""
        return sum(part.flops(queries, keys) for part in self.inner.values())

    def finish_aux(self, sums: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Losses and statistics of the parts; names are the parts' own."""
        losses: dict[str, Tensor] = {}
        statistics: dict[str, Tensor] = {}
        for name, part in self.inner.items():
            own = {key.partition(".")[2]: value for key, value in sums.items() if key.startswith(f"{name}.")}
            if own:
                part_losses, part_statistics = part.finish_aux(own)
                losses |= part_losses
                statistics |= {f"{name}.{key}": value for key, value in part_statistics.items()}
        return losses, statistics

    def after_step(self, statistics: Mapping[str, Tensor]) -> None:
        """Each part's own statistics, to each."""
        for name, part in self.inner.items():
            part.after_step({k.partition(".")[2]: v for k, v in statistics.items() if k.startswith(f"{name}.")})


class NormedBlock(ComposedBlock):
    """A composed block with one norm a branch; where it stands is each block's own."""

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory | None,
        feed_forward: FeedForwardFactory | None,
        norm: NormFactory = RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__(context, mixer=mixer, feed_forward=feed_forward, dropout=dropout)
        self.mixer_norm = self.norm_of(self.mixer, norm, context)
        self.feed_forward_norm = self.norm_of(self.feed_forward, norm, context)
