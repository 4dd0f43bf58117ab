"""The recurrence of an LSTM over packed and padded rows: by torch's fused kernel, for one token, and naively.

All three take `x` (B, T, D), weights, `h` and `c` (B, W) before the first token, `starts` and `real` (B, T) or None,
and return `y` (B, T, W) with `h` and `c` after the last real token. A start forgets h and c; padding leaves them as
they are and gets an arbitrary output.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff_rnn.loops import entering, kept_by

#: A gate whose input this is added to is open, one from whose input it is taken is shut, in float32 to the last bit.
_SATURATED = 1e4


class Weights(NamedTuple):
    """As in `torch.nn.LSTM`: `ih` (4W, D), `hh` (4W, W) and two biases (4W,), gates in the order i, f, g, o."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


def lstm(
    x: Tensor, weights: Weights, h: Tensor, c: Tensor, starts: Tensor | None, real: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence in one call of torch's kernel.

    Where documents begin inside the rows, or rows hold padding, the real tokens are moved to the left, one token is put
    before each start whose gates are all shut, so that nothing passes it, and rows are filled up with tokens that hold
    the cell. Two input channels tell the kernel of them.
    """
    if not x.shape[1]:
        return x.new_zeros(x.shape[0], 0, h.shape[1]), h, c
    if real is None and (starts is None or not bool(starts[:, 1:].any())):
        return _kernel(x, weights, *entering((h, c), starts))
    B, T, D = x.shape
    real = torch.ones(B, T, dtype=torch.bool, device=x.device) if real is None else real
    starts = torch.zeros_like(real) if starts is None else starts
    place = (real.long() + starts.long()).cumsum(1) - 1  # where a real token goes; its start's token stands before it
    length = int(place[:, -1].max()) + 1
    if length == 0:
        return x.new_zeros(B, T, h.shape[1]), h, c
    flat = place + length * torch.arange(B, device=x.device)[:, None]
    at = flat[real]
    marks = x.new_zeros(B * length, 2)
    marks[:, 1] = 1.0
    marks[at] = 0.0
    marks[flat[starts] - 1] = marks.new_tensor([1.0, 0.0])
    tokens = torch.cat([x.new_zeros(B * length, D).index_copy(0, at, x[real]), marks], 1)
    y, _, c = _kernel(tokens.view(B, length, D + 2), _marked(weights), h, c)
    y = y.flatten(0, 1).index_select(0, flat.clamp_min(0).flatten()).view(B, T, -1)
    return y, _last(y, h, real), c


def lstm_step(
    x: Tensor, weights: Weights, h: Tensor, c: Tensor, starts: Tensor | None, real: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence of one token, T = 1."""
    before = h, c
    h, c = entering(before, starts)
    gates = F.linear(x[:, 0], weights.ih, weights.bias_ih) + F.linear(h, weights.hh, weights.bias_hh)
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    y = h[:, None]
    h, c = kept_by(real, (h, c), before)
    return y, h, c


def lstm_naive(
    x: Tensor, weights: Weights, h: Tensor, c: Tensor, starts: Tensor | None, real: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What `lstm` computes, one token after the other; the products that `LSTM.flops` counts."""
    rows = []
    for t in range(x.shape[1]):
        here = slice(t, t + 1)
        y, h, c = lstm_step(
            x[:, here], weights, h, c, *(None if mark is None else mark[:, here] for mark in (starts, real))
        )
        rows.append(y)
    return torch.cat(rows, 1), h, c


def _kernel(x: Tensor, weights: Weights, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    state, train = (h[None].contiguous(), c[None].contiguous()), torch.is_grad_enabled()
    y, h, c = torch.lstm(x, state, list(weights), True, 1, 0.0, train, False, True)
    return y, h[0], c[0]


def _marked(weights: Weights) -> Weights:
    """With two more input channels: the first shuts i, f and o; the second shuts i and o and opens f."""
    forget = weights.ih.new_tensor([-_SATURATED, -_SATURATED, 0.0, -_SATURATED])
    hold = weights.ih.new_tensor([-_SATURATED, _SATURATED, 0.0, -_SATURATED])
    marks = torch.stack([forget, hold], 1).repeat_interleave(weights.hh.shape[1], 0)
    return weights._replace(ih=torch.cat([weights.ih, marks], 1))


def _last(y: Tensor, h: Tensor, real: Tensor) -> Tensor:
    """`y` at the last real token of each row, or `h` where there is none."""
    last = torch.where(real, torch.arange(1, y.shape[1] + 1, device=y.device), 0).amax(1)
    at = (last - 1).clamp_min(0)[:, None, None].expand(-1, 1, y.shape[2])
    return torch.where(last[:, None] > 0, y.gather(1, at)[:, 0], h)
