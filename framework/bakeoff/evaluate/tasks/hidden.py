"""The hidden states of one layer's mixer, text by text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.model import LanguageModel
from bakeoff.parts.modes import evaluating

#: What a mixer puts out, for which no field of a state is called.
OUTPUT = "output"
#: The field of a state that is read unless another is asked for: the cell of an LSTM.
CELL = "c"


class Hidden:
    """Reads a model's texts, ids of tokens, and tells the numbers of a layer.

    Attributes
    ----------
    of : "output", what the layer's mixer puts out, or the name of a field of the mixer's state.
    """

    def __init__(self, model: LanguageModel, seen: list[Result], of: str | None):
        self.model, self.seen = model, seen
        self.of = of or self._usual()

    def last(self, texts: list[list[int]]) -> Tensor:
        """(n, F): after the last token of each text."""
        length = max(map(len, texts))
        real = torch.tensor([[True] * len(ids) + [False] * (length - len(ids)) for ids in texts])
        tokens = torch.tensor([ids + [0] * (length - len(ids)) for ids in texts])
        result, _ = self._read(tokens, real, None if self.of == OUTPUT else self._empty(len(texts), length))
        if self.of != OUTPUT:
            return self._field(result)
        return result.y[torch.arange(len(texts)), real.sum(1) - 1].double().cpu()

    def trace(self, ids: list[int]) -> Tensor:
        """(T, F): after each token of one text."""
        tokens = torch.tensor([ids])
        if self.of == OUTPUT:
            return self._read(tokens, None, None)[0].y[0].double().cpu()
        state, rows = self._empty(1, len(ids)), []
        for t in range(len(ids)):
            result, state = self._read(tokens[:, t : t + 1], None, state)
            rows.append(self._field(result)[0])
        return torch.stack(rows)

    def _usual(self) -> str:
        """The cell, where the mixer's state has one."""
        try:
            result, _ = self._read(torch.zeros(1, 1, dtype=torch.long), None, self._empty(1, 1))
        except CapabilityError:
            return OUTPUT
        return CELL if CELL in getattr(result.state, "_fields", ()) else OUTPUT

    def _read(self, tokens: Tensor, real: Tensor | None, state: Any) -> tuple[Result, Any]:
        """The mixer's result, and the model's state after the tokens where one is given."""
        device = self.model.backbone.embedding.device
        marks = None if real is None or bool(real.all()) else real.to(device)
        sequence = Sequence(tokens.to(device), real=marks, past=None if state is None else state.past)
        self.seen.clear()
        after = self.model.backbone(sequence, state).state
        return self.seen[0], after

    def _empty(self, batch: int, length: int) -> Any:
        return self.model.empty_state(batch, length)

    def _field(self, result: Result) -> Tensor:
        known = getattr(result.state, "_fields", ())
        if self.of not in known:
            raise UserError(
                f"the mixer's state has no '{self.of}'; it has {', '.join(known) or 'no fields'}, or 'output'"
            )
        return getattr(result.state, self.of).flatten(1).double().cpu()


@contextmanager
def reading(model: LanguageModel, layer: int, of: str | None) -> Iterator[Hidden]:
    """A reader of `of` (null: the cell of an LSTM, else the output) in a layer.

    Raises `UserError` where there is no such layer or field, `CapabilityError` where the layer has no mixer.
    """
    seen: list[Result] = []
    hook = mixer_of(model, layer).register_forward_hook(lambda module, given, result: seen.append(result))
    try:
        with evaluating(model), torch.no_grad():
            yield Hidden(model, seen, of)
    finally:
        hook.remove()


def mixer_of(model: LanguageModel, layer: int) -> nn.Module:
    """The mixer of a layer."""
    layers = model.backbone.layers
    if not -len(layers) <= layer < len(layers):
        raise UserError(f"layer is {layer}; the model has {len(layers)}, 0 to {len(layers) - 1}")
    for module in layers[layer].modules():
        if getattr(module, "kind", None) == "mixer":
            return module
    raise CapabilityError(f"layer {layer % len(layers)} has no mixer")
