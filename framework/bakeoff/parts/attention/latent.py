"""Multi-head latent attention: keys and values of all heads from one short vector a token, and only that is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
from bakeoff.parts.attention.mixer import by_heads, by_spans, on_attention
from bakeoff.parts.linear import Linear, columns, linear_flops, rows
from bakeoff.parts.norms import RMSNorm

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class LatentAttention(SequenceMixer):
    """Multi-head latent attention.

        c_t, r_t = split(W_down x_t)      c_t := norm(c_t)      q_t = W_q x_t  or  W_up norm(W_down' x_t)
        k_t = [U_k c_t, rotate(r_t)]      v_t = U_v c_t         y_t = W_o softmax(scale q_t k^T) v

    The rotated part of a key is one for all heads. A state holds `latent_width + rotary_width` numbers a token. Queries
    that are few beside the tokens held are attended in the absorbed form: `q U_k` against the latents themselves, and
    `U_v` on their weighted sum; the others on expanded keys and values. The form with fewer multiply-adds is taken.

    Parameters
    ----------
    n_heads : H.
    head_width : channels of a head's queries and keys that are not rotated, N.
    rotary_width : channels of a head's queries, and of the one shared key, that `position` acts on, R.
    value_width : channels of a head's values, P (null: N).
    latent_width : channels of the latent that keys and values come from, C.
    query_rank : channels of the latent that queries come from (null: queries come from x).
    norm : of both latents.
    scale : what logits are multiplied by (null: 1 / sqrt(N + R)).
    position : an encoding that rotates R channels of queries and keys or adds a bias to the logits; null for none.
    op : how attention is computed.

    Raises `ValueError` if a number is under 1, `UserError` if the position acts on embeddings only.
    """

    reference = Reference(
        "DeepSeek-AI", 2024, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", "https://arxiv.org/abs/2405.04434"
    )  # fmt: skip

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        head_width: int,
        rotary_width: int,
        latent_width: int,
        value_width: int | None = None,
        query_rank: int | None = None,
        norm: Callable[[LayerContext], Norm] = RMSNorm,
        scale: float | None = None,
        position: Callable[[LayerContext], PositionalEncoding] | None = None,
        op: Callable[[LayerContext], AttentionOp] = Auto,
    ):
        super().__init__(context)
        D, H, N, R, C = context.d_model, n_heads, head_width, rotary_width, latent_width
        P = N if value_width is None else value_width
        _at_least_one(n_heads=H, head_width=N, rotary_width=R, latent_width=C, value_width=P, query_rank=query_rank)
        self.n_heads, self.head_width, self.rotary_width, self.value_width, self.latent_width = H, N, R, P, C
        self.scale = (N + R) ** -0.5 if scale is None else scale
        if query_rank is not None:
            self.query_down = Linear(D, query_rank)
            self.query_norm = norm(context.child(d_model=query_rank))
        self.query_rank = query_rank
        self.query = Linear(D if query_rank is None else query_rank, H * (N + R))  # of each head N, then R rows
        self.key_value_down = Linear(D, C + R)
        self.key_value_norm = norm(context.child(d_model=C))
        self.key_value_up = Linear(C, H * (N + P))  # of each head N rows of keys, then P of values
        self.output = Linear(H * P, context.d_output or D, role="output")
        inner = context.child(n_heads=H, n_kv_heads=H, head_width=N + R, window=None, soft_cap=None, d_output=None)
        rotated = inner.child(head_width=R)
        self.position = None if position is None else on_attention("latent_attention", position(rotated))
        self.op = op(inner)
        self.cache = Cache(None)
        splits = by_heads(self.position)
        claims = Capabilities(
            documents=True,
            padding=True,
            state=True,
            bidirectional=True,
            compile=True,
            tensor_parallel=splits,
            context_parallel=by_spans(self.position),
        )
        self.capabilities = claims.meet(self.op.capabilities)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Low-rank queries with narrower values, and full queries with wider ones; a bias and no rotation."""
        return [
            {
                "n_heads": 4,
                "head_width": 4,
                "rotary_width": 2,
                "latent_width": 6,
                "value_width": 5,
                "query_rank": 8,
                "position": {"use": "rope", "interleaved": True},
            },
            {
                "n_heads": 2,
                "head_width": 4,
                "rotary_width": 4,
                "latent_width": 16,
                "value_width": 12,
                "scale": 0.5,
                "position": {"use": "alibi"},
            },
        ]

    def needs(self) -> tuple[Need, ...]:
        """Where the state is written."""
        return self.cache.needs

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        q, q_rotary = self._queries(x)  # (B, T, H, N), (B, T, H, R)
        latent, k_rotary = self.key_value_down(x).split((self.latent_width, self.rotary_width), 2)
        k_rotary = k_rotary.unsqueeze(2)  # (B, T, 1, R)
        if self.position is not None:
            q_rotary, k_rotary = self.position.rotate(q_rotary, k_rotary, sequence)
        new = torch.cat([self.key_value_norm(latent), k_rotary.squeeze(2).to(latent.dtype)], 2)
        values, state, _ = self.cache.extend(state, {"latent": new}, sequence)
        held = values["latent"]  # (B, S, C + R)
        attend = self._absorbed if self._absorbs(x.shape[1], held.shape[1]) else self._expanded
        return Result(self.output(attend(q, q_rotary, held, sequence).flatten(2)), state)

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has some of the heads, and all of the latents, which its state holds too."""
        check_heads(self.n_heads, ranks)
        plan = columns(self, "query", unit=self.head_width + self.rotary_width)
        plan |= columns(self, "key_value_up", unit=self.head_width + self.value_width)
        return plan | rows(self, "output", unit=self.value_width)

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the heads of this rank."""
        self.n_heads //= ranks.size()

    def empty_state(
        self,
        batch: int,
        max_length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Any:
        """Latents and rotated keys of no tokens: (B, slots, C + R)."""
        width = self.latent_width + self.rotary_width
        return self.cache.empty({"latent": (width,)}, batch, max_length, dtype, device)

    def flops(self, queries: int, keys: int) -> int:
        """The projections of the queries' tokens, and the form of attention that is taken."""
        H, N, R, P, C = self.n_heads, self.head_width, self.rotary_width, self.value_width, self.latent_width
        layers = [self.query, self.key_value_down, self.output]
        if self.query_rank is not None:
            layers.append(self.query_down)
        products = sum(linear_flops(layer, queries) for layer in layers)
        pairs = queries * (keys - queries) + queries * (queries + 1) // 2
        if self._absorbs(queries, keys):
            return products + linear_flops(self.key_value_up, queries) + 4 * H * (C + R) * pairs
        return products + linear_flops(self.key_value_up, keys) + 2 * H * (N + R + P) * pairs

    def _absorbs(self, queries: int, keys: int) -> bool:
        """Whether the absorbed form makes fewer multiply-adds, in each head; never without a past."""
        N, R, P, C = self.head_width, self.rotary_width, self.value_width, self.latent_width
        if queries == keys:
            return False
        return queries * (C * (N + P) + keys * 2 * (C + R)) < keys * (C * (N + P) + queries * (N + R + P))

    def _queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.query_rank is not None:
            x = self.query_norm(self.query_down(x))
        q = self.query(x).unflatten(2, (self.n_heads, self.head_width + self.rotary_width))
        plain, rotary = q.split((self.head_width, self.rotary_width), 3)
        return plain, rotary

    def _expanded(self, q: Tensor, q_rotary: Tensor, held: Tensor, sequence: Sequence) -> Tensor:
        """(B, T, H, P), by the keys and values of each head."""
        latent, k_rotary = held.split((self.latent_width, self.rotary_width), 2)
        k, v = self.key_value_up(latent).unflatten(2, (self.n_heads, -1)).split((self.head_width, self.value_width), 3)
        k = torch.cat([k, k_rotary.unsqueeze(2).expand(-1, -1, self.n_heads, -1).to(k.dtype)], 3)
        return self._attend(torch.cat([q, q_rotary], 3), k, v, sequence)

    def _absorbed(self, q: Tensor, q_rotary: Tensor, held: Tensor, sequence: Sequence) -> Tensor:
        """(B, T, H, P), by the latents as the one key and the one value of all heads."""
        up = self.key_value_up.weight.unflatten(0, (self.n_heads, -1))  # (H, N + P, C)
        to_keys, to_values = up.split((self.head_width, self.value_width), 1)
        q = torch.einsum("bthn,hnc->bthc", q, to_keys)
        held = held.unsqueeze(2)  # (B, S, 1, C + R)
        # values as wide as the keys are the keys themselves: narrower ones would be copied by the fused kernel
        out = self._attend(torch.cat([q, q_rotary.to(q.dtype)], 3), held, held, sequence)
        return torch.einsum("bthc,hpc->bthp", out[..., : self.latent_width], to_values)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sequence: Sequence) -> Tensor:
        bias = None if self.position is None else self.position.bias(sequence)
        out, _ = self.op(q, k, v, sequence, scale=self.scale, bias=bias)
        return out


def _at_least_one(**numbers: int | None) -> None:
    told = ", ".join(f"{name} {number}" for name, number in numbers.items() if number is not None)
    if any(number is not None and number < 1 for number in numbers.values()):
        raise ValueError(f"latent_attention: {told}; each must be at least 1")
