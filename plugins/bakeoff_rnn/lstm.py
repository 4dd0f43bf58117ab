"""The long short-term memory network as a mixer."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from bakeoff.interfaces import Capabilities, LayerContext, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.parts.linear import Linear, linear_flops
from torch import Tensor

from bakeoff_rnn.recurrence import Weights, lstm, lstm_naive, lstm_step


class LSTMState(NamedTuple):
    """Output and cell, (B, width) each, float32 or wider."""

    h: Tensor
    c: Tensor


class LSTM(SequenceMixer):
    """One layer of long short-term memory.

        i, f, o = sigmoid(W x_t + R h_(t-1) + b)        g = tanh(W x_t + R h_(t-1) + b)
        c_t = f * c_(t-1) + i * g                       h_t = o * tanh(c_t)

    with weights of its own for each of i, f, g and o, which `input` and `recurrent` hold in this order, and two biases,
    as in `torch.nn.LSTM`, whose kernel computes it. Where `width` is not `d_model`, a projection brings h back to
    `d_model`.

    Every channel of h reads all of them at every token, so that ranks cannot share them out: no `tensor_parallel`.

    Parameters
    ----------
    width : channels of h and c; null: `d_model`.
    forget_bias : what the forget gate's bias starts from; 1 remembers by default (Gers et al., 2000).
    """

    reference = Reference(
        "Hochreiter and Schmidhuber", 1997, "Long Short-Term Memory", "https://doi.org/10.1162/neco.1997.9.8.1735"
    )
    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True)

    def __init__(self, context: LayerContext, *, width: int | None = None, forget_bias: float = 1.0):
        super().__init__(context)
        if width is not None and width < 1:
            raise ValueError(f"width is {width}; an LSTM has at least 1 channel")
        d = context.d_model
        self.width, self.forget_bias = width or d, forget_bias
        self.input = Linear(d, 4 * self.width, bias=True)
        self.recurrent = Linear(self.width, 4 * self.width, bias=True)
        self.output = Linear(self.width, d, role="output") if self.width != d else None

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """With and without the projection."""
        return [{}, {"width": 12}]

    def reset_parameters(self) -> None:
        """Weights uniform within 1/sqrt(width), as `torch.nn.LSTM` starts; biases zero, but for the forget gate's."""
        bound = self.width**-0.5
        init.fill(self.input.weight, init.uniform(-bound, bound))
        init.fill(self.recurrent.weight, init.uniform(-bound, bound))
        gates = torch.tensor([0.0, self.forget_bias, 0.0, 0.0]).repeat_interleave(self.width)
        init.fill(self.input.bias, init.exactly(gates))
        init.fill(self.recurrent.bias, init.constant(0.0))

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> LSTMState:
        """Zeros, in float32 or wider."""
        wide = torch.promote_types(dtype, torch.float32)
        return LSTMState(*(torch.zeros(batch, self.width, dtype=wide, device=device) for _ in range(2)))

    def forward(self, x: Tensor, sequence: Sequence, state: LSTMState | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        return self._mix(x, sequence, state, lstm_step if sequence.length == 1 else lstm)

    def naive(self, x: Tensor, sequence: Sequence, state: LSTMState | None = None) -> Result:
        """The same, one token after the other."""
        return self._mix(x, sequence, state, lstm_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: LSTMState | None, recurrence: Any) -> Result:
        wide = torch.promote_types(x.dtype, torch.float32)
        given = (self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias)
        with torch.autocast(x.device.type, enabled=False):
            weights = Weights(*(tensor.to(wide) for tensor in given))
            held = self.empty_state(x.shape[0], 0, wide, x.device) if state is None else state
            y, h, c = recurrence(x.to(wide), weights, held.h, held.c, sequence.starts, sequence.real)
        y = y.to(x.dtype)
        return Result(y if self.output is None else self.output(y), None if state is None else LSTMState(h, c))

    def flops(self, queries: int, keys: int) -> int:
        """Products of the four gates with input and output, and the projection."""
        return sum(linear_flops(layer, queries) for layer in (self.input, self.recurrent, self.output))
