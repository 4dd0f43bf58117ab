"""Attention to the last tokens, and to those of all earlier ones that a query is nearest to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import (
    AttentionOp,
    Cut,
    LayerContext,
    Need,
    Norm,
    PositionalEncoding,
    Reference,
    Result,
    Sequence,
    init,
)
from bakeoff.parts.attention.auto import Auto
from bakeoff.parts.attention.cache import Cache
from bakeoff.parts.attention.mixer import Attention, seen_pairs
from bakeoff.parts.norms import RMSNorm
from torch import Tensor, nn

from bakeoff_retro.nearest_keys import KeysBeyond, look_up, look_up_naively


class MemorizingAttention(Attention):
    """Attention to the last `window` tokens and, in each head, to the `k` earlier keys nearest to the query.

        local  = softmax attention over the last `window` tokens of the document, with positions
        memory = softmax attention over those k of the document's tokens beyond the window, of the newest `memory`,
                 that have the largest inner products with the query; without positions
        out_h  = g_h memory + (1 - g_h) local,      g_h = sigmoid(b_h), b_h learnt, 0 at first

    A token that has nothing beyond its window gets local attention alone. The memory is searched exactly; of equal
    products the newer key is taken. Queries learn from what they find, keys and values in the memory do not: they are
    what the local attention makes of them. With `memory` the state has a fixed size, and `trainer.stateful` carries it
    from one training window to the next: so the memory reaches beyond a row, as in the paper.

    Parameters
    ----------
    n_heads, n_kv_heads, head_width, bias, op : as in `attention`.
    window : tokens that local attention sees, the query's own included.
    k : keys that a query of a head takes from the memory.
    memory : keys that are kept beyond the window (null: all).
    qk_norm, norm : as in `attention`; normalised queries and keys compare keys of any age alike.
    position : as in `attention`, of the local attention alone.

    Raises `UserError` if `window`, `k` or `memory` is under 1, `k` is over `memory`, or as `attention` does.
    """

    reference = Reference("Wu et al.", 2022, "Memorizing Transformers", "https://arxiv.org/abs/2203.08913")

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        window: int,
        k: int = 32,
        memory: int | None = None,
        n_kv_heads: int | None = None,
        head_width: int | None = None,
        qk_norm: Literal["head", "whole"] | None = "head",
        norm: Callable[[LayerContext], Norm] = RMSNorm,
        bias: bool = False,
        position: Callable[[LayerContext], PositionalEncoding] | None = None,
        op: Callable[[LayerContext], AttentionOp] = Auto,
    ):
        _check(window=window, k=k, memory=memory)
        super().__init__(
            context,
            n_heads=n_heads,
            window=window,
            n_kv_heads=n_kv_heads,
            head_width=head_width,
            qk_norm=qk_norm,
            norm=norm,
            bias=bias,
            position=position,
            op=op,
        )
        self.k, self.memory = k, memory
        self.memory_gate = nn.Parameter(torch.empty(self.n_heads))
        held = None if memory is None else window + memory
        self.remembered, self.reach = Cache(held), 0 if held is None else held - 1
        self.beyond = {rolling: KeysBeyond(window, memory, rolling) for rolling in {False, memory is not None}}
        self.capabilities = replace(
            self.capabilities,
            constant_state=memory is not None,
            bidirectional=False,
            compile=False,
            context_parallel=False,
        )

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """All of the past; a bounded memory, more of it than is taken, in a band; every earlier key."""
        rope, t5 = {"use": "rope"}, {"use": "t5_position"}
        return [
            {"n_heads": 4, "n_kv_heads": 2, "window": 3, "k": 2, "position": rope},
            {"n_heads": 4, "window": 2, "k": 2, "memory": 4, "qk_norm": None, "position": t5, "op": {"use": "banded"}},
            {
                "n_heads": 2,
                "n_kv_heads": 1,
                "head_width": 6,
                "window": 1,
                "memory": 32,
                "qk_norm": "whole",
                "bias": True,
            },
        ]

    def reset_parameters(self) -> None:
        """Gates that take half of each."""
        init.fill(self.memory_gate, init.constant(0.0))

    def needs(self) -> tuple[Need, ...]:
        """Where both states are written, and what may be looked up."""
        return (*super().needs(), *self.remembered.needs, *self.beyond.values())

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        return self._mix(x, sequence, state, look_up)

    def naive(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """The same call, the memory searched key by key."""
        return self._mix(x, sequence, state, look_up_naively)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the key-value heads, and the query heads and gates that go with them."""
        return super().parallel_plan(ranks) | {"memory_gate": Cut(0, self.n_heads // self.n_kv_heads)}

    def empty_state(
        self,
        batch: int,
        max_length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Any:
        """`local`, that of `attention`, and `memory`: keys without positions, and values, of window and memory."""
        shape = (self.n_kv_heads, self.head_width)
        memory = self.remembered.empty({"k": shape, "v": shape}, batch, max_length, dtype, device)
        return {"local": super().empty_state(batch, max_length, dtype, device), "memory": memory}

    def flops(self, queries: int, keys: int) -> int:
        """That of `attention`; 2 N H a key beyond the window that is searched, and 2 N H one that is taken."""
        W = self.window
        assert W is not None
        local = seen_pairs(queries, keys, W)
        beyond, taken = (
            seen_pairs(queries, keys, None if most is None else W + most) - local for most in (self.memory, self.k)
        )
        return super().flops(queries, keys) + 2 * self.head_width * self.n_heads * (beyond + taken)

    def _mix(self, x: Tensor, sequence: Sequence, state: Any, look_up: Callable[..., tuple[Tensor, Tensor]]) -> Result:
        own, memory = (None, None) if state is None else (state["local"], state["memory"])
        q, k, v = self._project(x)  # (B, T, H, N), (B, T, K, N) twice
        local, own = self._attend(q, k, v, sequence, own)
        held, memory, rolling = self.remembered.extend(memory, {"k": k.detach(), "v": v.detach()}, sequence)
        beyond = sequence[self.beyond[rolling]]
        looked, found = look_up(q, held["k"], held["v"], beyond, self.k, self.head_width**-0.5)
        gate = torch.sigmoid(self.memory_gate)[:, None].to(local.dtype)
        out = torch.where(found[..., None], gate * looked + (1 - gate) * local, local)
        return Result(self.output(out.flatten(2)), None if state is None else {"local": own, "memory": memory})


def _check(*, window: int, k: int, memory: int | None) -> None:
    """Raise `UserError` where nothing could be seen, or never so many keys found."""
    for name, value in {"window": window, "k": k, "memory": memory}.items():
        if value is not None and value < 1:
            raise UserError(f"memorizing_attention: {name} is {value}; it must be at least 1")
    if memory is not None and k > memory:
        raise UserError(
            f"memorizing_attention: k is {k} and memory {memory}; no more keys can be taken than are kept: "
            f"give k at most {memory}, or memory at least {k}"
        )
