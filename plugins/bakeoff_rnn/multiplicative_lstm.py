"""The multiplicative LSTM as a mixer."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from bakeoff.interfaces import Capabilities, LayerContext, Reference, Result, Sequence, SequenceMixer, init
from bakeoff.parts.linear import Linear, linear_flops
from bakeoff.parts.products import linear
from torch import Tensor, nn
from torch.nn import functional as F

from bakeoff_rnn.multiplicative import multiplicative, multiplicative_naive, multiplicative_step


class MultiplicativeLSTMState(NamedTuple):
    """Hidden state and cell, (B, width) each, float32 or wider."""

    h: Tensor
    c: Tensor


class MultiplicativeLSTM(SequenceMixer):
    """A long short-term memory whose transition of the hidden state depends on the input.

        m_t = (W_mx x_t) * (W_mh h_(t-1))                     o, i, f = sigmoid(W x_t + W_m m_t + b)
        g = tanh(W x_t + W_m m_t + b)        c_t = f * c_(t-1) + i * g        h_t = o * tanh(c_t)

    with weights of its own for each of o, i, f and g, which `input` and `by_m` hold in this order: the cell of the
    "sentiment neuron" (Radford et al., 2017, arXiv:1704.01444). It is a true loop over tokens, in training too: no
    token can be computed before the one before it. Where `width` is not `d_model`, a projection brings h back to
    `d_model`. All h_t, (B, T, width), pass through the submodule `hidden`, where a forward hook can read them.

    Every channel of h reads all of them at every token, so that ranks cannot share them out: no `tensor_parallel`.

    Parameters
    ----------
    width : channels of h and c; null: `d_model`.
    weight_norm : each row of the four matrices is a direction times a learned length (Salimans and Kingma, 2016), as in
        the sentiment neuron.
    forget_bias : what the forget gate's bias starts from; 1 remembers by default (Gers et al., 2000).
    """

    reference = Reference(
        "Krause, Lu, Murray and Renals", 2016, "Multiplicative LSTM for Sequence Modelling", "https://arxiv.org/abs/1609.07959"
    )  # fmt: skip
    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True)

    def __init__(
        self,
        context: LayerContext,
        *,
        width: int | None = None,
        weight_norm: bool = False,
        forget_bias: float = 1.0,
    ):
        super().__init__(context)
        if width is not None and width < 1:
            raise ValueError(f"width is {width}; a multiplicative LSTM has at least 1 channel")
        d = context.d_model
        self.width, self.forget_bias = width or d, forget_bias
        self.factor = Matrix(d, self.width, normed=weight_norm)
        self.by_h = Matrix(self.width, self.width, normed=weight_norm)
        self.input = Matrix(d, 4 * self.width, normed=weight_norm, bias=True)
        self.by_m = Matrix(self.width, 4 * self.width, normed=weight_norm)
        self.hidden = nn.Identity()
        self.output = Linear(self.width, d, role="output") if self.width != d else None

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Plain; and wider, with weight normalisation."""
        return [{}, {"width": 20, "weight_norm": True}]

    def reset_parameters(self) -> None:
        """Biases zero, but for the forget gate's."""
        gates = torch.tensor([0.0, 0.0, self.forget_bias, 0.0]).repeat_interleave(self.width)
        init.fill(self.input.bias, init.exactly(gates))

    def empty_state(
        self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None
    ) -> MultiplicativeLSTMState:
        """Zeros, in float32 or wider."""
        wide = torch.promote_types(dtype, torch.float32)
        h, c = (torch.zeros(batch, self.width, dtype=wide, device=device) for _ in range(2))
        return MultiplicativeLSTMState(h, c)

    def forward(self, x: Tensor, sequence: Sequence, state: MultiplicativeLSTMState | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        return self._mix(x, sequence, state, multiplicative_step if sequence.length == 1 else multiplicative)

    def naive(self, x: Tensor, sequence: Sequence, state: MultiplicativeLSTMState | None = None) -> Result:
        """The same in plain products, one token after the other."""
        return self._mix(x, sequence, state, multiplicative_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: MultiplicativeLSTMState | None, recurrence: Any) -> Result:
        wide = torch.promote_types(x.dtype, torch.float32)
        factor, gates = self.factor(x), self.input(x)
        with torch.autocast(x.device.type, enabled=False):
            given = (factor, gates, self.by_h.matrix(), self.by_m.matrix())
            h, c = self.empty_state(x.shape[0], 0, wide, x.device) if state is None else state
            y, h, c = recurrence(*(t.to(wide) for t in given), h, c, sequence.starts, sequence.real)
        y = self.hidden(y).to(x.dtype)
        after = None if state is None else MultiplicativeLSTMState(h, c)
        return Result(y if self.output is None else self.output(y), after)

    def flops(self, queries: int, keys: int) -> int:
        """Products of the factors and gates with the input, of h, of m, and the projection."""
        products = (self.factor, self.by_h, self.input, self.by_m, self.output)
        return sum(linear_flops(layer, queries) for layer in products)


class Matrix(Linear):
    """A learned product; with `normed`, each row of its matrix is the direction of `weight`'s row times `gain`."""

    def __init__(self, d_in: int, d_out: int, *, normed: bool, bias: bool = False):
        super().__init__(d_in, d_out, bias=bias)
        self.gain = nn.Parameter(torch.empty(d_out)) if normed else None

    def matrix(self) -> Tensor:
        """What is multiplied by, (d_out, d_in)."""
        return self.weight if self.gain is None else F.normalize(self.weight, dim=1) * self.gain[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)."""
        return linear(x, self.matrix(), self.bias)
