"""The encoder of neighbours: bidirectional, and told of the chunk that they were found for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from bakeoff.interfaces import LayerContext, Norm, Part
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.linear import Linear, linear_flops
from bakeoff.parts.norms import RMSNorm
from torch import Tensor, nn

from bakeoff_retro.relative import RelativeAttention, RelativeLogits

NormFactory = Callable[[LayerContext], Norm]

#: The name under which the first layer shows later ones what the encoder made, (B, C, k L, W).
ENCODED = "encoded_neighbours"


class NeighbourEncoder(Part):
    """Neighbours (…, L, D), L = 2 m, and what a model has of the m tokens of their chunk -> (…, L, W).

    `depth` layers of `x = x + self(norm(x)); x = x + cross(norm(x), chunk); x = x + mlp(norm(x))`, then a norm; every
    token of a neighbour sees all others of it, and all tokens of the chunk. It reads the backbone's embeddings,
    brought to W channels where D are not as many. It has no dropout, and no positions but those of `RelativeLogits`.
    """

    def __init__(
        self,
        context: LayerContext,
        *,
        depth: int,
        width: int,
        heads: int,
        head_width: int,
        chunk: int,
        norm: NormFactory = RMSNorm,
    ):
        super().__init__(context)
        sizes = {"depth": depth, "width": width, "heads": heads, "head_width": head_width}
        self.sizes = {**{f"encoder_{name}": size for name, size in sizes.items()}, "chunk": chunk}
        inner = context.child(d_model=width, d_output=None)
        self.project = nn.Identity() if width == context.d_model else Linear(context.d_model, width)
        self.layers = nn.ModuleList(
            EncoderLayer(inner, d_chunk=context.d_model, n_heads=heads, head_width=head_width, chunk=chunk, norm=norm)
            for _ in range(depth)
        )
        self.norm = norm(inner)

    @staticmethod
    def head_width(width: int, heads: int) -> int:
        """Channels of a head where heads share out the width; raises `ValueError` where they do not."""
        if width % heads:
            raise ValueError(
                f"retro: encoder_heads is {heads} and encoder_width {width}; the heads must divide the width, or give "
                "encoder_head_width"
            )
        return width // heads

    def forward(self, texts: Tensor, real: Tensor, activations: Tensor) -> Tensor:
        """(X, k, L, D), (X, k, L) bool, (X, m, D) -> (X, k L, W), of X chunks and k neighbours of each."""
        X, k, L = real.shape
        x = self.project(texts)
        for layer in self.layers:
            x = layer(x, real, activations)
        return self.norm(x).view(X, k * L, -1)

    def naive(self, texts: Tensor, real: Tensor, activations: Tensor) -> Tensor:
        """(k, L, D), (k, L) bool, (m, D) -> (k L, W): one neighbour after another."""
        each = [self.project(text) for text in texts]
        for layer in self.layers:
            each = layer.naive(each, real, activations)  # type: ignore[operator]
        return self.norm(torch.cat(each))

    def flops(self, queries: int, keys: int) -> int:
        """Of one chunk, whose neighbours have `queries` tokens in all; `keys` is of no account."""
        project = 0 if isinstance(self.project, nn.Identity) else linear_flops(self.project, queries)
        return project + sum(layer.flops(queries, keys) for layer in self.layers)  # type: ignore[operator]


class EncoderLayer(Part):
    """Attention within a neighbour, attention to its chunk, and a feed-forward."""

    def __init__(
        self, context: LayerContext, *, d_chunk: int, n_heads: int, head_width: int, chunk: int, norm: NormFactory
    ):
        super().__init__(context)
        self.chunk, W, L = chunk, context.d_model, 2 * chunk
        size = {"d_query": W, "n_heads": n_heads, "head_width": head_width}
        within = RelativeLogits(context, n_heads=n_heads, queries=L, keys=L)
        across = RelativeLogits(context, n_heads=n_heads, queries=L, keys=chunk)
        self.mixer_norm, self.cross_norm, self.feed_forward_norm = norm(context), norm(context), norm(context)
        self.mixer = RelativeAttention(context, d_key=W, logits=within, **size)
        self.cross = RelativeAttention(context, d_key=d_chunk, logits=across, **size)
        self.feed_forward = MLP(context)

    def forward(self, x: Tensor, real: Tensor, activations: Tensor) -> Tensor:
        """(X, k, L, W), (X, k, L), (X, m, D) -> (X, k, L, W)."""
        texts = self.mixer_norm(x).flatten(0, 1)
        x = x + self.mixer(texts, texts, real.flatten(0, 1)).view_as(x)
        x = x + self.cross(self.cross_norm(x).flatten(1, 2), activations).view_as(x)
        return x + self.feed_forward(self.feed_forward_norm(x), None).y

    def naive(self, texts: list[Tensor], real: Tensor, activations: Tensor) -> list[Tensor]:
        """The same of k neighbours of one chunk, (L, W) each, (k, L), (m, D)."""
        keys, values = self.cross.key(activations), self.cross.value(activations)
        after = []
        for x, there in zip(texts, real, strict=True):
            text = self.mixer_norm(x)
            q, k, v = self.mixer.query(text), self.mixer.key(text), self.mixer.value(text)
            x = x + self.mixer.output(self.mixer.naive(q, k, v, self.mixer.logits.naive(), there))
            q = self.cross.query(self.cross_norm(x))
            x = x + self.cross.output(self.cross.naive(q, keys, values, self.cross.logits.naive()))
            after.append(x + self.feed_forward(self.feed_forward_norm(x), None).y)
        return after

    def flops(self, queries: int, keys: int) -> int:
        """Of one chunk, whose neighbours have `queries` tokens in all; `keys` is of no account."""
        m = self.chunk
        own = self.mixer.query_flops(queries) + self.mixer.key_flops(queries) + self.mixer.pairs_flops(queries * 2 * m)
        other = self.cross.query_flops(queries) + self.cross.key_flops(m) + self.cross.pairs_flops(queries * m)
        return own + other + self.feed_forward.flops(queries, queries)
