"""What a model costs: parameters, work, state, and what decoding must read, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.context import Shared
from bakeoff.interfaces.init import roles
from bakeoff.interfaces.norm import Norm
from bakeoff.interfaces.part import Part, StatefulPart
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.state import nbytes
from bakeoff.model.language_model import LanguageModel
from bakeoff.registry import name_of

A = TypeVar("A")


class Parameters(NamedTuple):
    """Numbers of parameters, a shared one counted once.

    `without_embeddings` leaves out tables and readouts; `idle` are those that one token does not use.
    """

    total: int
    without_embeddings: int
    idle: int

    @property
    def active(self) -> int:
        """Those that one token uses, embeddings counted whole."""
        return self.total - self.idle

    @property
    def active_without_embeddings(self) -> int:
        """Those that one token uses, tables and readouts apart."""
        return self.without_embeddings - self.idle


@dataclass(frozen=True)
class Cost:
    """One part, or what several make up. None: the part declares no such figure.

    Attributes
    ----------
    name, component : what it is called where it stands, and the registered name (or class) of what stands there.
    parameters : how many; those of a tied readout are the embedding's.
    flops : forward operations a token, averaged over a sequence of the plan's length.
    decode_flops : forward operations of one more token with a full past, averaged over the plan's `decoded` last ones.
    state : bytes of one row's state at the plan's length.
    """

    name: str
    component: str
    parameters: int
    flops: float | None
    decode_flops: float | None
    state: int | None


@dataclass(frozen=True)
class Layer:
    """Layers that are alike: their numbers, what one of them costs, and its parts."""

    numbers: tuple[int, ...]
    whole: Cost
    parts: tuple[Cost, ...]


@dataclass(frozen=True)
class Plan:
    """What a model costs at a length; `notes` say which part declares what not.

    `decoded` is 1, or the tokens of a chunk where something is retrieved, which is read anew with each chunk.
    """

    length: int
    d_model: int
    parameters: Parameters
    weight_bytes: int
    read_bytes: int
    """Weights that decoding one row reads at each step: all but idle ones and a table that is only looked up in."""
    sparse: tuple[Sparse, ...]
    whole: Cost
    layers: tuple[Layer, ...]
    head: Cost
    decoded: int = 1
    notes: tuple[str, ...] = field(default=())

    @property
    def training_flops(self) -> float | None:
        """Operations a training token: backward is twice the forward."""
        return self.training_flops_with(0.0)

    def training_flops_with(self, forwards: float) -> float | None:
        """The same, with so many forward passes without gradients beside it."""
        return None if self.whole.flops is None else (3 + forwards) * self.whole.flops

    @property
    def formula_flops(self) -> float:
        """The rule of thumb `6 N (1 + s / 6 d)` a training token (N active, without embeddings), which is exact for a
        decoder of width-4 d MLPs with full attention, its causal half not subtracted and its readout not counted."""
        return formula_flops(self.parameters.active_without_embeddings, self.length, self.d_model)

    def read_by(self, batch: int) -> int:
        """Bytes of weights that decoding `batch` rows reads at each step, each row's choices falling evenly and apart
        from the others': of experts of which one token leaves the share p, n tokens leave p^n."""
        more = (part.idle - part.held * (part.idle / part.held) ** batch for part in self.sparse)
        return self.read_bytes + round(sum(more))

    def decode(self, batch: int, bandwidth: float) -> Roofline | None:
        """The bound that memory sets to decoding with a full past, or None where the state's size is not known."""
        if self.whole.state is None:
            return None
        return roofline(self.read_by(batch), self.whole.state, batch, bandwidth, self.whole.decode_flops)


class Sparse(NamedTuple):
    """A part that does not use all of its weights for each token: bytes that it holds, and that one token leaves."""

    held: int
    idle: int


class Roofline(NamedTuple):
    """A decoding step that does nothing but read weights once and each row's state once."""

    read: int
    """Bytes."""
    seconds: float
    tokens_per_second: float
    intensity: float | None
    """Operations a byte read."""


def formula_flops(parameters: int, length: int, d_model: int) -> float:
    """`6 N (1 + s / 6 d)`, operations a training token."""
    return 6 * parameters * (1 + length / (6 * d_model))


def roofline(weights: int, state: int, batch: int, bandwidth: float, flops: float | None = None) -> Roofline:
    """The bound for `weights` bytes, `state` bytes and `flops` a row, and `bandwidth` in bytes a second."""
    read = weights + batch * state
    seconds = read / bandwidth
    return Roofline(read, seconds, batch / seconds, None if flops is None else batch * flops / read)


def count_parameters(model: nn.Module) -> Parameters:
    """Of the whole model, also on the meta device."""
    kinds = roles(model)
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    apart = sum(count for name, count in counts.items() if kinds[name] in ("embedding", "readout"))
    idle = sum(part.idle() for part in _all_parts(model))
    return Parameters(sum(counts.values()), sum(counts.values()) - apart, idle)


def plan(model: LanguageModel, length: int | None = None) -> Plan:
    """The costs of `model` at `length` (its `max_length` unless given); computes no output and allocates nothing."""
    length = length or model.context.max_length
    like = model.backbone.embedding
    decoded = min(length, math.lcm(*(part.neighbours_of or 1 for part in _all_parts(model))))
    notes: dict[str, None] = {}  # an ordered set

    def known(ask: Callable[[], A]) -> A | None:
        try:
            return ask()
        except CapabilityError as error:
            notes[str(error)] = None
            return None

    def cost(name: str, part: Any) -> Cost:
        """Of a model, a block, or a part of it."""
        flops, last = known(lambda: part.flops(length, length)), known(lambda: part.flops(decoded, length))
        state: int | None = 0
        if isinstance(part, StatefulPart):
            with torch.no_grad():
                state = known(lambda: nbytes(part.empty_state(1, length, like.dtype, "meta")))
        count = sum(parameter.numel() for parameter in part.parameters())
        return Cost(name, component_name(part), count, _mean(flops, length), _mean(last, decoded), state)

    layers = [Layer((i,), cost("layer", block), tuple(_parts(block, cost))) for i, block in enumerate(_blocks(model))]
    head = cost("head", model.head)
    state = known(lambda: _held(model.backbone, length))
    whole = replace(cost("model", model), component=component_name(model.backbone), state=state)
    size = sum(parameter.nbytes for parameter in model.parameters())
    sparse = tuple(_sparse(part) for part in _all_parts(model) if part.idle())
    read = size - sum(part.idle for part in sparse) - (0 if model.tied_embedding else like.nbytes)
    counts = count_parameters(model)
    found = sparse, whole, _alike(layers), head, decoded, tuple(notes)
    return Plan(length, model.context.d_model, counts, size, read, *found)


def component_name(part: nn.Module) -> str:
    """The name that a recipe would call the part's class by, or the class's own."""
    return name_of(type(part)) or type(part).__name__


def _mean(work: int | None, tokens: int) -> float | None:
    return None if work is None else work / tokens


def _held(backbone: Backbone, length: int) -> int:
    """Bytes of one row's state, what it says of its past apart."""
    with torch.no_grad():
        state = backbone.empty_state(1, length, backbone.embedding.dtype, "meta")
    return nbytes(state) - nbytes(state.past)


def _all_parts(model: nn.Module) -> Iterator[Part]:
    return (module for module in model.modules() if isinstance(module, Part))


def _sparse(part: Part) -> Sparse:
    count, held = sum(p.numel() for p in part.parameters()), sum(p.nbytes for p in part.parameters())
    return Sparse(held, part.idle() * held // count)


def _blocks(model: LanguageModel) -> Iterator[Part]:
    for block in model.backbone.layers:
        assert isinstance(block, Part)
        yield block


def _parts(block: nn.Module, cost: Callable[[str, Part], Cost]) -> Iterator[Cost]:
    """The parts of a block, and those that it shares with others; norms and positions multiply no matrices."""
    for name, part in block.named_children():
        if isinstance(part, (Norm, PositionalEncoding)):
            count = sum(parameter.numel() for parameter in part.parameters())
            yield Cost(name, component_name(part), count, 0.0, 0, 0)
        elif isinstance(part, Part):
            yield cost(name, part)
    for name, part in vars(block).items():
        if isinstance(part, Shared) and isinstance(part.module, Part):
            yield cost(f"{name} by layers", part.module)


def _alike(layers: list[Layer]) -> tuple[Layer, ...]:
    """Layers of the same costs and components, together, in order of first appearance."""
    groups: dict[tuple[Cost, tuple[Cost, ...]], list[int]] = {}
    for layer in layers:
        groups.setdefault((layer.whole, layer.parts), []).extend(layer.numbers)
    return tuple(Layer(tuple(numbers), whole, parts) for (whole, parts), numbers in groups.items())
