"""The decoder: an embedding, a pattern of blocks, a final norm."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.block import Block
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.neighbours import EMBEDDED, NEIGHBOURS
from bakeoff.interfaces.norm import Norm
from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.past import Past
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.state import carried
from bakeoff.parts.linear import Embedding
from bakeoff.parts.needs import gather
from bakeoff.parts.norms import RMSNorm

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class DecoderState(NamedTuple):
    """The states of the layers, and the one description of what they hold."""

    layers: tuple[Any, ...]
    past: Past


def layer_names(pattern: list[str] | dict[str, list[str]], depth: int, known: Mapping[str, Any]) -> list[str]:
    """The block name of each layer: `first` once, then `repeat` (or the list itself), cut at `depth`."""
    if isinstance(pattern, dict):
        if set(pattern) - {"first", "repeat"} or not pattern.get("repeat"):
            raise ValueError(f"pattern has keys {', '.join(pattern)}; it takes `repeat` and, before it, `first`")
        first, repeat = pattern.get("first", []), pattern["repeat"]
    else:
        first, repeat = [], pattern
    if not repeat:
        raise ValueError("pattern is empty; it needs the name of at least one block")
    for name in [*first, *repeat]:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"pattern names block '{name}', but blocks has only {', '.join(known)}{hint}")
    if len(first) > depth:
        raise ValueError(f"pattern.first has {len(first)} layers, depth is {depth}")
    times = -(-(depth - len(first)) // len(repeat))
    return [*first, *(repeat * times)][:depth]


class Decoder(Backbone):
    """Embedding, then `depth` blocks in the order of `pattern`, then a norm.

    Parameters
    ----------
    pattern : names from `blocks`; a list repeats to the depth, `{first: […], repeat: […]}` begins otherwise.
    blocks : how each named block is built; every layer has its own.
    position : an encoding that acts on embeddings; those that act on attention belong to the mixer.
    norm : the final norm, or null.
    embedding_scale : multiplies the embeddings (Gemma: sqrt(D)).
    embedding_norm : normalises the embeddings, before the position (BLOOM), or null.
    dropout : on the embeddings.
    """

    reference = Reference(
        "Radford et al.", 2019, "Language Models are Unsupervised Multitask Learners", "https://openai.com/research/better-language-models"
    )  # fmt: skip

    def __init__(
        self,
        context: LayerContext,
        *,
        depth: int,
        pattern: list[str] | dict[str, list[str]],
        blocks: dict[str, Callable[[LayerContext], Block]],
        position: Callable[[LayerContext], PositionalEncoding] | None = None,
        norm: Callable[[LayerContext], Norm] | None = RMSNorm,
        embedding_scale: float = 1.0,
        embedding_norm: Callable[[LayerContext], Norm] | None = None,
        dropout: float = 0.0,
    ):
        super().__init__(context)
        if depth < 1:
            raise ValueError(f"depth is {depth}; a decoder has at least 1 layer")
        context = context.child(depth=depth)
        self.names = layer_names(pattern, depth, blocks)
        self.embed = Embedding(context.vocab_size, context.d_model)
        self.embedding_scale = embedding_scale
        self.embedding_norm = None if embedding_norm is None else embedding_norm(context)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.position = None if position is None else position(context)
        if self.position is not None and "embed" not in self.position.hooks:
            raise ValueError(
                f"model.position: {type(self.position).__name__} acts on attention, not on embeddings; "
                "give it to the mixer, as in mixer: {use: attention, position: …}"
            )
        self.blocks = nn.ModuleList(blocks[name](context.child(layer=i)) for i, name in enumerate(self.names))
        self.norm = None if norm is None else norm(context)
        self.shared = nn.ModuleDict(context.parts)
        self._needs = gather(self)
        self._seen = max(part.reach for part in self.modules() if isinstance(part, StatefulPart))

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A repeated layer, and one that comes first; everything else once."""
        block = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 4}, "feed_forward": {"use": "mlp"}}
        first = {"use": "pre_norm", "mixer": None, "feed_forward": {"use": "mlp"}}
        pattern = {"first": ["first"], "repeat": ["layer"]}
        extras = {"position": {"use": "sinusoidal_position"}, "norm": None, "embedding_scale": 4.0, "dropout": 0.1}
        extras["embedding_norm"] = {"use": "layer_norm"}
        return [
            {"depth": 2, "pattern": ["layer"], "blocks": {"layer": block}},
            {"depth": 2, "pattern": pattern, "blocks": {"first": first, "layer": block}, **extras},
        ]

    @property
    def embedding(self) -> nn.Parameter:
        """The (V, D) input embedding."""
        return cast(nn.Parameter, self.embed.weight)

    @property
    def layers(self) -> nn.ModuleList:
        """The blocks in order."""
        return self.blocks

    @property
    def stream(self) -> list[nn.Module]:
        """The blocks and the final norm."""
        return [self.blocks] if self.norm is None else [self.blocks, self.norm]

    @property
    def shared_parts(self) -> list[nn.Module]:
        """What layers share on purpose."""
        return list(self.shared.values())

    def narrow(self, ranks: DeviceMesh) -> None:
        """Gather anew what parts read, which may be less for a share of their heads."""
        self._needs = gather(self)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What all blocks can do; rows are shared out only where the position lets them be, too."""
        first, *others = (block.capabilities for block in self._each())
        met = first.meet(*others)
        shared = self.position is None or self.position.capabilities.context_parallel
        return met if shared else replace(met, context_parallel=False)

    def forward(self, sequence: Sequence, state: DecoderState | None = None) -> Result:
        """Hidden states (B, T, D) of `sequence.tokens`."""
        x = self._embedded(sequence.tokens)
        if NEIGHBOURS in sequence.memory:
            sequence.memory[EMBEDDED] = self._embedded(sequence.memory[NEIGHBOURS].tokens)
        if self.position is not None:
            x = self.position.embed(x, sequence.prepare(self.position.needs()))
        x = self.dropout(x)
        sequence.memory["embedding"] = x
        sequence.prepare(self._needs)
        states: list[Any] = []
        aux: dict[str, Tensor] = {}
        for i, block in enumerate(self.blocks):
            result = block(x, sequence, None if state is None else state.layers[i])
            x = result.y
            states.append(result.state)
            sequence.memory.update(result.memory)
            aux.update({f"{i}.{key}": value for key, value in result.aux.items()})
        if self.norm is not None:
            x = self.norm(x)
        after = None if state is None else DecoderState(tuple(states), state.past.advance(sequence))
        return Result(x, after, aux)

    def _embedded(self, tokens: Tensor) -> Tensor:
        """(…) -> (…, D), without what says where they stand."""
        x = self.embed(tokens)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def empty_state(
        self,
        batch: int,
        max_length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> DecoderState:
        """The empty states of all layers, and a past of no tokens."""
        layers = tuple(block.empty_state(batch, max_length, dtype, device) for block in self._each())
        return DecoderState(layers, Past(batch, max_length, device))

    def carry(self, state: DecoderState) -> DecoderState:
        """The same state, detached; of what grows, as many tokens as any part still sees."""
        return DecoderState(carried(state.layers, self._seen), state.past.carried(self._seen))

    def flops(self, queries: int, keys: int) -> int:
        """The blocks' work; looking up an embedding is none."""
        return sum(block.flops(queries, keys) for block in self._each())

    def layer_losses(self, aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Auxiliary losses, each averaged over the layers that report it."""
        reported: dict[str, list[Tensor]] = {}
        for block, own in self._of_blocks(aux).values():
            for name, loss in block.finish_aux(own)[0].items():
                reported.setdefault(name, []).append(loss)
        return {name: torch.stack(losses).mean() for name, losses in reported.items()}

    def layer_statistics(self, aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each block makes of its own sums."""
        return {
            f"{layer}.{name}": value
            for layer, (block, own) in self._of_blocks(aux).items()
            for name, value in block.finish_aux(own)[1].items()
        }

    def after_step(self, statistics: Mapping[str, Tensor]) -> None:
        """Show each block its own statistics."""
        for block, own in self._of_blocks(statistics).values():
            block.after_step(own)

    def _of_blocks(self, values: Mapping[str, Tensor]) -> dict[str, tuple[Block, dict[str, Tensor]]]:
        """Layer -> its block and those values that stand under the layer's number."""
        found: dict[str, tuple[Block, dict[str, Tensor]]] = {}
        for key, value in values.items():
            layer, _, name = key.partition(".")
            found.setdefault(layer, (cast(Block, self.blocks[int(layer)]), {}))[1][name] = value
        return found

    def _each(self) -> list[Block]:
        return cast(list[Block], list(self.blocks))
