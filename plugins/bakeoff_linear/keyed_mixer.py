"""What mixers have in common that write values under keys and read them by queries."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from bakeoff.interfaces import Capabilities, Cut, LayerContext, PositionalEncoding, Result, Sequence, SequenceMixer
from bakeoff.interfaces.cut import check_heads
from bakeoff.parts.kernels import Choice
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from torch import Tensor

if TYPE_CHECKING:
    from bakeoff.interfaces.spans import Spans
    from torch.distributed.device_mesh import DeviceMesh


class KeyedMixer(SequenceMixer):
    """Queries, keys and values of H heads; a scan with one matrix a head as its state, `rows` by `columns`.

    A subclass sets `scan`, the chunked form, and says what a scan is given and what becomes of what is read.

    Parameters
    ----------
    n_heads : H.
    key_width, value_width : channels of a head's queries and keys, N, and of its values, P.
    rows, columns : of the state of a head, if not P and N.
    chunk : tokens that are computed at once.
    position : an encoding that rotates queries and keys; null for none.
    bias : whether the projections have one.
    """

    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True, context_parallel=True
    )
    step: ClassVar[Callable[..., Any]]
    """The scan for one token, with a state."""
    recurrence: ClassVar[Callable[..., Any]]
    """The scan, one token after the other."""
    scan: Choice

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        key_width: int,
        value_width: int,
        chunk: int,
        rows: int | None = None,
        columns: int | None = None,
        position: Callable[[LayerContext], PositionalEncoding] | None = None,
        bias: bool = False,
    ):
        super().__init__(context)
        if chunk < 1:
            raise ValueError(f"chunk is {chunk}; a chunk has at least 1 token")
        self.n_heads, self.key_width, self.value_width, self.chunk = n_heads, key_width, value_width, chunk
        self.rows, self.columns = rows or value_width, columns or key_width
        self.options: dict[str, Any] = {}
        d, keys, values = context.d_model, n_heads * key_width, n_heads * value_width
        self.query = Linear(d, keys, bias=bias)
        self.key = Linear(d, keys, bias=bias)
        self.value = Linear(d, values, bias=bias)
        self.output = Linear(values, d, bias=bias, role="output")
        self.position = None
        if position is not None:
            heads = context.child(n_heads=n_heads, n_kv_heads=n_heads, head_width=key_width)
            self.position = _rotating(position(heads))

    @abstractmethod
    def _given(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, sequence: Sequence) -> tuple[Any, ...]:
        """What a scan is given, from `q` and `k` (B, T, H, N) and `v` (B, T, H, P), float32 or wider, and the input."""

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        """What is read, (B, T, H, P), as the output projection takes it, (B, T, H P)."""
        return y.flatten(2).to(x.dtype)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads."""
        check_heads(self.n_heads, ranks)
        plan = columns(self, "query", "key", unit=self.key_width) | columns(self, "value", unit=self.value_width)
        return plan | rows(self, "output", unit=self.value_width)

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank."""
        self.n_heads //= ranks.size()

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> Tensor:
        """Zeros (B, H, rows, columns), float32 or wider."""
        wide = torch.promote_types(dtype, torch.float32)
        return torch.zeros(batch, self.n_heads, self.rows, self.columns, dtype=wide, device=device)

    def forward(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """Mix `x` (B, T, D) along T."""
        one = state is not None and sequence.length == 1
        return self._mix(x, sequence, state, type(self).step if one else partial(self.scan, chunk=self.chunk))

    def naive(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """The same, one token after the other."""
        return self._mix(x, sequence, state, type(self).recurrence)

    def _mix(self, x: Tensor, sequence: Sequence, state: Tensor | None, scan: Callable[..., Any]) -> Result:
        q, k = (layer(x).unflatten(2, (self.n_heads, self.key_width)) for layer in (self.query, self.key))
        v = self.value(x).unflatten(2, (self.n_heads, self.value_width))
        if self.position is not None:
            q, k = self.position.rotate(q, k, sequence)
        wide = torch.promote_types(x.dtype, torch.float32)
        given = self._given(q.to(wide), k.to(wide), v.to(wide), x, sequence)
        with torch.autocast(x.device.type, enabled=False):
            if sequence.spans is None:
                y, after = scan(*given, state=state, segments=sequence.segments, **self.options)
            else:
                y, after = self._along(scan, given, sequence.spans), None
        return Result(self.output(self._finish(y, x)), after)

    def _along(self, scan: Callable[..., Any], given: tuple[Any, ...], spans: Spans) -> Tensor:
        """What a scan gives of this rank's tokens, where ranks share out rows."""
        return scan(*given, spans=spans, **self.options)[0]

    def _products(self) -> tuple[Linear, ...]:
        """Learned products that are done for every token."""
        return self.query, self.key, self.value, self.output

    def flops(self, queries: int, keys: int) -> int:
        """Projections, and the recurrence's products: 2 a number of the state for writing and for reading.

        What the chunked form does in exchange for matrix products is not counted, nor are decays, norms and gates.
        """
        linear = sum(linear_flops(layer, queries) for layer in self._products())
        return linear + 4 * self.n_heads * self.rows * self.columns * queries


def share(name: str, channels: int, n_heads: int) -> int:
    """Channels of each head; `ValueError` if they cannot be shared out evenly."""
    if n_heads < 1:
        raise ValueError(f"n_heads is {n_heads}; it must be at least 1")
    if channels < 1 or channels % n_heads:
        raise ValueError(f"{name} is {channels} and n_heads {n_heads}; n_heads must divide {name}")
    return channels // n_heads


def balanced_chunk(key_width: int, rows: int, columns: int) -> int:
    """The power of two at or below where work inside chunks balances work on states, between 16 and 128."""
    balance = 2 * rows * columns / (key_width + rows)
    return min(128, max(16, 2 ** int(math.log2(balance))))


def zero_padding(t: Tensor, sequence: Sequence) -> Tensor:
    """`t` (B, T, ...), zero where there is padding."""
    return t if sequence.real is None else t * sequence.real.view(*sequence.real.shape, *[1] * (t.ndim - 2)).to(t.dtype)


def _rotating(position: PositionalEncoding) -> PositionalEncoding:
    if "rotate" not in position.hooks:
        raise ValueError(
            f"position {type(position).__name__} rotates no queries and keys; null, or rope, can stand here"
        )
    return position
