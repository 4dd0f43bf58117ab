"""The minimal gated recurrent unit as a mixer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from bakeoff.interfaces import Capabilities, Cut, LayerContext, Reference, Result, Sequence, SequenceMixer
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.scans.elementwise import linear_scan, linear_scan_naive, linear_scan_step
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class MinGRU(SequenceMixer):
    """A gated recurrent unit whose gate and candidate see the input alone, so that it is a linear recurrence.

        z_t = sigmoid(W_z x_t + b_z)        h_t = (1 - z_t) * h_(t-1) + z_t * g(W_h x_t + b_h)        out_t = W_o h_t

    with g(u) = u + 1/2 where u >= 0 and sigmoid(u) elsewhere, which keeps h positive, as in the paper's form in
    logarithms. A scan computes it, all tokens at once; the gate comes as log(1 - z). The state is h, (B, width), in
    float32 or wider.

    Parameters
    ----------
    width : channels of h; null: `d_model`.
    bias : whether gate and candidate have one.
    """

    reference = Reference(
        "Feng, Tung, Ahmed, Bengio and Hajimirsadeghi", 2024, "Were RNNs All We Needed?", "https://arxiv.org/abs/2410.01201"
    )  # fmt: skip
    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )

    def __init__(self, context: LayerContext, *, width: int | None = None, bias: bool = True):
        super().__init__(context)
        if width is not None and width < 1:
            raise ValueError(f"width is {width}; a minimal GRU has at least 1 channel")
        d = context.d_model
        self.width = width or d
        self.gate = Linear(d, self.width, bias=bias, role="gate")
        self.candidate = Linear(d, self.width, bias=bias)
        self.output = Linear(self.width, d, role="output")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As wide as the model, and wider without biases."""
        return [{}, {"width": 20, "bias": False}]

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the channels of h."""
        return columns(self, "gate", "candidate") | rows(self, "output")

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the channels of this rank."""
        self.width //= ranks.size()

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> Tensor:
        """Zeros, in float32 or wider."""
        return torch.zeros(batch, self.width, dtype=torch.promote_types(dtype, torch.float32), device=device)

    def forward(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        decoding = state is not None and sequence.length == 1
        scan = linear_scan_step if decoding else partial(linear_scan, spans=sequence.spans)
        return self._mix(x, sequence, state, scan)

    def naive(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """The same by the recurrence, one token after the other."""
        return self._mix(x, sequence, state, linear_scan_naive)

    def _mix(self, x: Tensor, sequence: Sequence, state: Tensor | None, scan: Any) -> Result:
        wide = torch.promote_types(x.dtype, torch.float32)
        gate, candidate = self.gate(x), self.candidate(x)
        with torch.autocast(x.device.type, enabled=False):
            gate, candidate = gate.to(wide), candidate.to(wide)
            keep, new = F.logsigmoid(-gate), gate.sigmoid() * positive(candidate)
            if sequence.real is not None:
                keep, new = (t * sequence.real[:, :, None] for t in (keep, new))
            h, after = scan(keep, new, state=state, segments=sequence.segments)
        return Result(self.output(h.to(x.dtype)), after)

    def flops(self, queries: int, keys: int) -> int:
        """The three projections; the recurrence has no products."""
        return sum(linear_flops(layer, queries) for layer in (self.gate, self.candidate, self.output))


def positive(u: Tensor) -> Tensor:
    """`u + 1/2` where u >= 0, sigmoid(u) elsewhere: increasing, continuous and positive."""
    return torch.where(u >= 0, u + 0.5, u.sigmoid())
