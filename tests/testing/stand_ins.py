"""Small correct mixers, from which faulty ones are made."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.interfaces import Capabilities, LayerContext, Result, Sequence, SequenceMixer
from bakeoff.parts.linear import Linear, linear_flops
from bakeoff.testing import check
from torch import Tensor, nn


def broken(component: type, *laws: str) -> dict[str, str]:
    """Laws (of those named, or of all) that a component breaks, each with its reason."""
    report = check(component, laws=laws or None)
    return {finding.law: finding.reason for finding in report.failures}


class Mean(SequenceMixer):
    """Each token sees the mean of all tokens so far; nothing claimed but what is claimed by default."""

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.output = Linear(context.d_model, context.d_model, role="output")

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        count = torch.arange(1, x.shape[1] + 1)[:, None]
        return Result(self.output(self.seen(x).cumsum(1) / count))

    def seen(self, x: Tensor) -> Tensor:
        return x

    def flops(self, queries: int, keys: int) -> int:
        return linear_flops(self.output, queries)


class Decay(SequenceMixer):
    """`h_t = h_(t-1) / 2 + x_t`: every claim that a recurrence can make."""

    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True)

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.width = context.d_model
        self.output = Linear(context.d_model, context.d_model, role="output")

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> Any:
        return (torch.zeros(batch, self.width, dtype=torch.promote_types(dtype, torch.float32), device=device),)

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        h = x.new_zeros(x.shape[0], self.width) if state is None else state[0]
        ys = []
        for t in range(x.shape[1]):
            h = self.step(h, x[:, t], sequence, t)
            ys.append(h)
        y = torch.stack(ys, 1).to(x.dtype)
        return Result(self.output(y), None if state is None else self.kept(h, x, state))

    def step(self, h: Tensor, x: Tensor, sequence: Sequence, t: int) -> Tensor:
        before = h if sequence.starts is None else torch.where(sequence.starts[:, t, None], 0.0, h)
        after = before / 2 + x
        return after if sequence.real is None else torch.where(sequence.real[:, t, None], after, h)

    def kept(self, h: Tensor, x: Tensor, state: Any) -> Any:
        return (h,)

    def flops(self, queries: int, keys: int) -> int:
        return linear_flops(self.output, queries)


class Recall(SequenceMixer):
    """Softmax attention of one head, with a growing cache of inputs in both layouts."""

    capabilities = Capabilities(state=True)

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.width = context.d_model
        self.query = nn.Linear(context.d_model, context.d_model, bias=False)

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> Any:
        if torch.is_grad_enabled():
            return ()
        return (torch.zeros(batch, max_length, self.width, dtype=dtype, device=device),)

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        keys, state = (x, None) if state is None else self.extended(state, x, sequence)
        logits = self.query(x) @ keys.mT / 4
        ahead = torch.arange(keys.shape[1]) > sequence.index[..., None]
        weights = logits.masked_fill(ahead, -torch.inf).softmax(-1)
        return Result(weights @ keys, state)

    def extended(self, state: Any, x: Tensor, sequence: Sequence) -> tuple[Tensor, Any]:
        if not sequence.past.slots:
            return torch.cat([*state, x], 1), (*state, x)
        (slots,) = state
        start = sequence.past.longest
        slots[:, start : start + x.shape[1]] = x
        return slots[:, : start + x.shape[1]], state

    def flops(self, queries: int, keys: int) -> int:
        pairs = queries * (keys - queries) + queries * (queries + 1) // 2
        return 2 * queries * self.width**2 + 4 * self.width * pairs
