"""Softmax attention: the model of a mixer with parameters, positions, a state and a cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from bakeoff.errors import UserError
from bakeoff.interfaces import init
from bakeoff.interfaces.attention_op import AttentionOp
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.cut import Cut, check_heads
from bakeoff.interfaces.mixer import SequenceMixer
from bakeoff.interfaces.norm import Norm
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Need, Sequence
from bakeoff.parts.attention.auto import Auto
from bakeoff.parts.attention.cache import Cache
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.norms import RMSNorm

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Attention(SequenceMixer):
    """Multi-head attention; grouped with fewer key-value heads, multi-query with one; local with a window.

    Parameters
    ----------
    n_heads : query heads, H.
    n_kv_heads : key-value heads, K, a divisor of H (null: H); query head h reads key-value head h // (H / K).
    head_width : channels per head, N (null: D / H).
    window : keys that a query sees at most, itself included (null: all of the past).
    qk_norm : normalise queries and keys before rotation: "head" over the N channels of each head, "whole" over all.
    norm : what `qk_norm` normalises by.
    soft_cap : logits become `cap * tanh(logits / cap)`.
    output_gate : multiply what the heads give by `sigmoid(gate(x))`, before the output projection.
    sinks : one learned logit per head that takes part in the softmax and has no value.
    bias : on the projections to queries, keys, values and gate. output_bias : on the output projection.
    scale : what logits are multiplied by (null: 1 / sqrt(N)).
    position : an encoding that rotates queries and keys or adds a bias to the logits; null for none.
    op : how attention is computed.

    Raises `UserError` if K does not divide H, H does not divide D (without `head_width`), a number is out of range, or
    the position acts on embeddings only.
    """

    reference = Reference("Vaswani et al.", 2017, "Attention Is All You Need", "https://arxiv.org/abs/1706.03762")

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_width: int | None = None,
        window: int | None = None,
        qk_norm: Literal["head", "whole"] | None = None,
        norm: Callable[[LayerContext], Norm] = RMSNorm,
        soft_cap: float | None = None,
        output_gate: bool = False,
        sinks: bool = False,
        bias: bool = False,
        output_bias: bool = False,
        scale: float | None = None,
        position: Callable[[LayerContext], PositionalEncoding] | None = None,
        op: Callable[[LayerContext], AttentionOp] = Auto,
    ):
        super().__init__(context)
        D, H, K, N = _widths(context.d_model, n_heads, n_kv_heads, head_width)
        if window is not None and window < 1:
            raise UserError(f"attention: window is {window}; it must be at least 1, or null for all keys")
        if soft_cap is not None and soft_cap <= 0:
            raise UserError(f"attention: soft_cap is {soft_cap}; it must be over 0, or null for none")
        if qk_norm not in (None, "head", "whole"):
            raise UserError(f"attention: qk_norm is '{qk_norm}'; it is 'head', 'whole' or null")
        self.n_heads, self.n_kv_heads, self.head_width, self.window, self.scale = H, K, N, window, scale
        self.query = Linear(D, H * N, bias=bias)
        self.key = Linear(D, K * N, bias=bias)
        self.value = Linear(D, K * N, bias=bias)
        self.gate = Linear(D, H * N, bias=bias, role="gate") if output_gate else None
        self.output = Linear(H * N, context.d_output or D, bias=output_bias, role="output")
        self.sinks = nn.Parameter(torch.empty(H)) if sinks else None
        self.qk_norm = qk_norm
        if qk_norm is not None:
            self.query_norm = norm(context.child(d_model=N if qk_norm == "head" else H * N))
            self.key_norm = norm(context.child(d_model=N if qk_norm == "head" else K * N))
        known = {"n_heads": H, "n_kv_heads": K, "head_width": N, "window": window, "soft_cap": soft_cap}
        inner = context.child(**known, d_output=None)
        self.position = None if position is None else on_attention("attention", position(inner))
        self.op = op(inner)
        self.cache, self.reach = Cache(window), 0 if window is None else window - 1
        splits = by_heads(self.position) and (qk_norm != "whole" or isinstance(self.query_norm, RMSNorm))
        claims = Capabilities(
            documents=True,
            padding=True,
            state=True,
            bidirectional=True,
            compile=True,
            tensor_parallel=splits,
            context_parallel=by_spans(self.position),
        )
        self.capabilities = replace(claims.meet(self.op.capabilities), constant_state=window is not None)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Grouped heads with all positions' kinds, windows masked and banded, every option once, and sinks alone."""
        options = {"qk_norm": "head", "soft_cap": 5.0, "output_gate": True, "sinks": True, "bias": True}
        return [
            {"n_heads": 4, "n_kv_heads": 2, "position": {"use": "rope"}},
            {"n_heads": 4, "n_kv_heads": 1, "window": 4, "position": {"use": "alibi"}, "op": {"use": "banded"}},
            {"n_heads": 2, "head_width": 6, "window": 3, "position": {"use": "t5_position"}, **options},
            {"n_heads": 4, "n_kv_heads": 2, "window": 5, "sinks": True, "position": {"use": "rope"}},
        ]

    def reset_parameters(self) -> None:
        """Sinks of zero; the projections are filled by role."""
        if self.sinks is not None:
            init.fill(self.sinks, init.constant(0.0))

    def needs(self) -> tuple[Need, ...]:
        """Where the state is written."""
        return self.cache.needs

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self._project(x)  # (B, T, H, N), (B, T, K, N) twice
        out, state = self._attend(q, k, v, sequence, state)
        out = out.flatten(2)  # (B, T, H N)
        if self.gate is not None:
            out = out * torch.sigmoid(self.gate(x))
        return Result(self.output(out), state)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the key-value heads, and the query heads that read them."""
        check_heads(self.n_kv_heads, ranks, "n_kv_heads")
        N, group = self.head_width, self.n_heads // self.n_kv_heads
        queries, keys = group * N, N
        plan = columns(self, "query", "gate", unit=queries) | columns(self, "key", "value", unit=keys)
        plan |= rows(self, "output", unit=queries)
        if self.sinks is not None:
            plan["sinks"] = Cut(0, group)
        if self.qk_norm == "whole":
            plan |= {"query_norm.weight": Cut(0, queries), "key_norm.weight": Cut(0, keys)}
        return plan

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank; norms over all heads are taken over all ranks."""
        self.n_heads //= ranks.size()
        self.n_kv_heads //= ranks.size()
        for norm in (self.query_norm, self.key_norm) if self.qk_norm == "whole" else ():
            norm.over = ranks  # type: ignore[assignment]

    def empty_state(
        self,
        batch: int,
        max_length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Any:
        """Keys and values of no tokens: (B, slots, K, N) each, `slots` the smaller of `max_length` and the window."""
        shape = (self.n_kv_heads, self.head_width)
        return self.cache.empty({"k": shape, "v": shape}, batch, max_length, dtype, device)

    def flops(self, queries: int, keys: int) -> int:
        """The projections, and 4 N H a visible pair: queries by keys, and weights by values."""
        pairs = seen_pairs(queries, keys, self.window)
        layers = (self.query, self.key, self.value, self.gate, self.output)
        products = sum(linear_flops(layer, queries) for layer in layers)
        return products + 4 * self.head_width * self.n_heads * pairs

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.qk_norm == "whole":
            q, k = self.query_norm(q), self.key_norm(k)
        q, k, v = (t.unflatten(2, (t.shape[2] // self.head_width, self.head_width)) for t in (q, k, v))
        if self.qk_norm == "head":
            q, k = self.query_norm(q), self.key_norm(k)
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sequence: Sequence, state: Any) -> tuple[Tensor, Any]:
        """What the heads give, (B, T, H, N), and the state after the call."""
        position = self.position
        if position is not None:
            q, k = position.rotate(q, k, sequence)
        values, state, rolling = self.cache.extend(state, {"k": k, "v": v}, sequence)  # (B, S, K, N) each
        bias = None if position is None else position.bias(sequence, rolling)
        out, _ = self.op(
            q, values["k"], values["v"], sequence, rolling=rolling, scale=self.scale, bias=bias, sinks=self.sinks
        )
        return out, state


def seen_pairs(queries: int, keys: int, window: int | None) -> int:
    """How many keys the last `queries` of `keys` tokens see together, each at most `window`, itself included."""
    past = keys - queries
    reach = keys if window is None else min(window, keys)
    growing = max(0, min(queries, reach - past))  # queries that see all that came before them
    return growing * past + growing * (growing + 1) // 2 + (queries - growing) * reach


def by_heads(position: PositionalEncoding | None) -> bool:
    """Whether ranks that share out the heads may have the position: a bias on the logits must know of it."""
    return position is None or "bias" not in position.hooks or position.capabilities.tensor_parallel


def by_spans(position: PositionalEncoding | None) -> bool:
    """Whether ranks that share out the tokens of rows may have the position."""
    return position is None or position.capabilities.context_parallel


def _widths(d_model: int, n_heads: int, n_kv_heads: int | None, head_width: int | None) -> tuple[int, int, int, int]:
    """D, H, K, N."""
    H, K, N = n_heads, n_heads if n_kv_heads is None else n_kv_heads, head_width
    if H < 1 or K < 1 or (N is not None and N < 1):
        raise UserError(f"attention: n_heads is {H}, n_kv_heads {K}, head_width {N}; each must be at least 1")
    if H % K:
        raise UserError(f"attention: n_heads is {H} and n_kv_heads {K}; n_kv_heads must divide n_heads")
    if N is None and d_model % H:
        raise UserError(
            f"attention: n_heads is {H} and d_model {d_model}; n_heads must divide d_model, or give head_width"
        )
    return d_model, H, K, d_model // H if N is None else N


def on_attention(part: str, position: PositionalEncoding) -> PositionalEncoding:
    """The position, which acts on queries, keys or logits; else raises `UserError`, in the name of a mixer."""
    if not position.hooks & {"rotate", "bias"}:
        raise UserError(
            f"{part}.position: {type(position).__name__} acts on embeddings, not on attention; "
            "give it to the model, as in model.position"
        )
    return position
