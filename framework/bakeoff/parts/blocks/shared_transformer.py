"""The block whose transformer is one and the same in all its uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.blocks.composed import Calls, ComposedBlock, FeedForwardFactory, MixerFactory, NormFactory
from bakeoff.parts.linear import Linear, linear_flops
from bakeoff.parts.low_rank import adapted, low_rank
from bakeoff.parts.norms import RMSNorm


class TransformerBody(ComposedBlock):
    """`feed_forward(norm(mixer(norm(x))))` from 2 D channels to D, with low-rank adapters for each use."""

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory,
        feed_forward: FeedForwardFactory,
        norm: NormFactory,
        adapters: Mapping[str, list[str]],
        rank: int,
    ):
        D = context.d_model
        wide = context.child(d_model=2 * D, d_output=D)
        super().__init__(wide, mixer=mixer, feed_forward=lambda _: feed_forward(context), dropout=0.0)
        self.mixer_norm, self.feed_forward_norm = norm(wide), norm(context)
        self.context, self.adapted, self.rank = context, dict(adapters), rank
        self.uses = nn.ModuleList()
        self.parts: dict[str, Any] | None = None

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What its parts can do; adapters stand whole, and cannot serve layers that ranks share out."""
        inner = super().capabilities
        return replace(inner, tensor_parallel=inner.tensor_parallel and not self.adapted)

    def add_use(self, name: str, parts: dict[str, Any]) -> int:
        """A further use, with adapters of its own; its number. Raises `ValueError` if it asks for other parts."""
        self.parts = self.parts or parts
        for key, value in parts.items():
            if _differ(value, self.parts[key]):
                raise ValueError(
                    f"blocks share '{name}', one with {key} {self.parts[key]}, another with {value}; "
                    "give them the same, or one of them another name in `shared`"
                )
        paths = self.adapted.items()
        self.uses.append(nn.ModuleDict({key: low_rank(self.context, self, p, self.rank) for key, p in paths}))
        return len(self.uses) - 1

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None, use: int = 0) -> Result:
        """(B, T, 2 D) -> (B, T, D), with the adapters of one use."""
        adapters = self.uses[use]
        view = adapted(self, [(adapters[key], paths) for key, paths in self.adapted.items()])  # type: ignore[index]
        call = Calls(sequence, state)
        assert view.mixer is not None
        assert view.feed_forward is not None
        y = call("mixer", view.mixer, self.mixer_norm(x))
        if y.shape[-1] != self.context.d_model:
            raise CapabilityError(
                f"shared_transformer: {type(self.mixer).__name__} gives {y.shape[-1]} channels where "
                f"{self.context.d_model} are asked of it (context.d_output); use attention"
            )
        return call.result(call("feed_forward", view.feed_forward, self.feed_forward_norm(y)))

    def flops(self, queries: int, keys: int) -> int:
        """The parts' work and that of one use's adapters."""
        adapters = self.uses[0].values() if len(self.uses) else ()  # type: ignore[operator]
        return super().flops(queries, keys) + sum(adapter.flops(queries, keys) for adapter in adapters)


class SharedTransformer(ComposedBlock):
    """`y = x + mixer(norm(x + W transformer([x, embedding])))`; one transformer serves all blocks that name it.

    The transformer, `feed_forward(norm(mixer(norm([x, embedding]))))`, reads the stream beside the embedding of the
    tokens, 2 D channels, and gives D. Its weights are shared; W, the adapters and the states are each block's own.

    Parameters
    ----------
    mixer : the block's own.
    shared_mixer : of the transformer, from 2 D channels to D; attention can.
    shared_feed_forward : of the transformer.
    norm : of the mixer's branch and of both of the transformer's.
    shared : blocks that give the same name share the transformer; several names take turns in a pattern.
    adapters : by a name of yours, linear layers of the transformer that read one input, such as
        `{gates: [feed_forward.gate, feed_forward.up]}`; each block adds `x A^T B_i^T` of its own to what they give.
    adapter_rank : rows of A.
    dropout : on the mixer's branch.

    Raises `ValueError` where blocks give one name to different transformers, or where `adapters` name no linear layer.
    """

    reference = Reference(
        "Glorioso et al.", 2024, "The Zamba2 Suite: Technical Report", "https://arxiv.org/abs/2411.15242"
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory,
        shared_mixer: MixerFactory,
        shared_feed_forward: FeedForwardFactory,
        norm: NormFactory = RMSNorm,
        shared: str = "transformer",
        adapters: dict[str, list[str]] | None = None,
        adapter_rank: int = 128,
        dropout: float = 0.0,
    ):
        super().__init__(context, mixer=mixer, feed_forward=None, dropout=dropout)
        self.norm = norm(context)
        self.projection = Linear(context.d_model, context.d_model, role="output")
        parts: dict[str, Any] = {"mixer": shared_mixer, "feed_forward": shared_feed_forward, "norm": norm}
        parts |= {"adapters": adapters or {}, "rank": adapter_rank}
        self.shared = context.shared(shared, partial(TransformerBody, **parts))
        self.use = self.shared.module.add_use(shared, parts)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Without adapters, and with adapters of one layer and of two."""
        attention = {"use": "attention", "n_heads": 4}
        parts = {
            "mixer": attention,
            "shared_mixer": attention,
            "shared_feed_forward": {"use": "gated_mlp", "width": 24},
        }
        adapters = {"query": ["mixer.query"], "gates": ["feed_forward.gate", "feed_forward.up"]}
        return [parts, {**parts, "adapters": adapters, "adapter_rank": 3, "dropout": 0.2}]

    @property
    def inner(self) -> dict[str, StatefulPart]:
        """The block's mixer, and the transformer."""
        return {**super().inner, "shared": self.shared.module}

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        if "embedding" not in sequence.memory:
            raise CapabilityError("shared_transformer reads the tokens' embedding; this backbone shows none in memory")
        call = Calls(sequence, state)
        assert self.mixer is not None
        joined = torch.cat([x, sequence.memory["embedding"]], -1)
        global_ = self.projection(call("shared", partial(self.shared, use=self.use), joined))
        return call.result(x + self.dropout(call("mixer", self.mixer, self.norm(x + global_))))

    def flops(self, queries: int, keys: int) -> int:
        """The mixer's work, the transformer's, and the map back."""
        return super().flops(queries, keys) + linear_flops(self.projection, queries)


def _differ(one: Any, other: Any) -> bool:
    """Whether two arguments are known to differ: factories of a recipe can be compared, mere functions cannot."""
    comparable = type(one) is type(other) and type(one).__eq__ is not object.__eq__
    return comparable and one != other
