"""Attention whose logits know how far apart a query and a key are, by a learned map of sinusoids of the distance."""

from __future__ import annotations

import torch
from bakeoff.interfaces import LayerContext, Part
from bakeoff.parts.linear import Linear, linear_flops
from torch import Tensor

from bakeoff_retro.attending import attend

#: Sinusoids of a distance: a sine and a cosine of each of half as many wavelengths, from 2 pi to 20000 pi.
FEATURES = 32


class RelativeLogits(Part):
    """For queries i and keys i', `W f(i - i' + shift)` of each head; f are `FEATURES` sinusoids of the distance."""

    def __init__(self, context: LayerContext, *, n_heads: int, queries: int, keys: int, shift: int = 0):
        super().__init__(context)
        self.queries, self.keys, self.shift = queries, keys, shift
        self.weight = Linear(FEATURES, n_heads, role="input")

    def forward(self) -> Tensor:
        """(H, queries, keys)."""
        weight = self.weight.weight
        distances = torch.arange(1 - self.keys, self.queries, device=weight.device) + self.shift
        table = self.weight(sinusoids(distances).to(weight.dtype)).t()  # (H, distances)
        return table.unfold(1, self.keys, 1).flip(2)

    def naive(self) -> Tensor:
        """The same, each pair by itself."""
        i, other = torch.arange(self.queries)[:, None], torch.arange(self.keys)
        weight = self.weight.weight
        features = sinusoids((i - other + self.shift).to(weight.device)).to(weight.dtype)  # (Q, K, F)
        return torch.stack([(features * row).sum(-1) for row in weight])


class RelativeAttention(Part):
    """Softmax attention from (X, Q, d_query) to (X, K, d_key), of H heads of N channels, with `RelativeLogits`.

    Logits are `q k / sqrt(N)` and the distance's.
    """

    def __init__(
        self, context: LayerContext, *, d_query: int, d_key: int, n_heads: int, head_width: int, logits: RelativeLogits
    ):
        super().__init__(context)
        self.n_heads, self.head_width = n_heads, head_width
        inner = n_heads * head_width
        self.query = Linear(d_query, inner)
        self.key = Linear(d_key, inner)
        self.value = Linear(d_key, inner)
        self.output = Linear(inner, d_query, role="output")
        self.logits = logits

    def forward(self, x: Tensor, y: Tensor, seen: Tensor | None = None) -> Tensor:
        """`x` (X, Q, d_query) looks at `y` (X, K, d_key), of which `seen` (X, K) tells what is there.

        Q may be a multiple of the queries that the logits are of: these are then so many texts, one after another.
        """
        logits = self.logits()
        logits = logits.repeat(1, x.shape[1] // logits.shape[1], 1)
        return self.output(self.attend(self.query(x), self.key(y), self.value(y), logits[None], seen))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """(X, Q, H N), of queries (X, Q, H N), keys and values (X, K, H N), logits (X or 1, H, Q, K), seen (X, K).

        What sees no key gets what no one may use.
        """
        q, k, v = (t.unflatten(2, (self.n_heads, self.head_width)) for t in (q, k, v))
        return attend(q, k, v, logits, seen).flatten(2)

    def naive(self, q: Tensor, k: Tensor, v: Tensor, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """`attend` of (Q, H N), (K, H N), (K, H N), (H, Q, K) and (K,): head by head."""
        heads = []
        each = (t.split(self.head_width, 1) for t in (q, k, v))
        for own_q, own_k, own_v, own_logits in zip(*each, logits, strict=True):
            scores = own_q @ own_k.t() / self.head_width**0.5 + own_logits
            if seen is not None:
                scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min / 2)
            heads.append(scores.softmax(-1) @ own_v)
        return torch.cat(heads, 1)

    def pairs_flops(self, pairs: int) -> int:
        """Work of so many pairs of a query and a key: their product, and the weights by the values."""
        return 4 * self.n_heads * self.head_width * pairs

    def query_flops(self, queries: int) -> int:
        """Projections of so many queries, and of what they get."""
        return linear_flops(self.query, queries) + linear_flops(self.output, queries)

    def key_flops(self, keys: int) -> int:
        """Projections of so many keys and values."""
        return linear_flops(self.key, keys) + linear_flops(self.value, keys)


def sinusoids(distances: Tensor) -> Tensor:
    """(…) -> (…, FEATURES): sines and cosines, float32."""
    exponents = torch.arange(0, FEATURES, 2, device=distances.device).float() / FEATURES
    angles = distances[..., None].float() * 10000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], -1)
