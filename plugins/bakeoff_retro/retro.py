"""The block of RETRO: a decoder's layer that also attends to what was retrieved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bakeoff.interfaces import LayerContext, Reference, Result, Sequence, StatefulPart
from bakeoff.parts.blocks.composed import Calls, FeedForwardFactory, MixerFactory, NormedBlock, NormFactory
from bakeoff.parts.norms import RMSNorm
from torch import Tensor

from bakeoff_retro.cross_attention import ChunkedCrossAttention
from bakeoff_retro.encoder import NeighbourEncoder


class Retro(NormedBlock):
    """`x = x + mixer(norm(x)); x = x + cross(norm(x), neighbours); x = x + feed_forward(norm(x))`.

    The mixer, the feed-forward and their norms stand as in `pre_norm`, under the same names; a layer to which no
    neighbours are shown computes the same. Chunks of m tokens count from each document's first. For each whole chunk u
    there are k neighbours, texts of 2 m tokens. A token sees those of the last whole chunk of its document, from that
    chunk's last token on, the m tokens that come first: it attends to all tokens of all k in one softmax. Others get 0.
    Neighbours are read by one encoder, which all layers of this block share: it attends within each, to the chunk as it
    stands after the mixer and the norm of the first such layer, and passes on. Logits know of distances (app. B.1):
    d(i, i') = i - i' + m - 1 from token i of those that see a neighbour to its token i'; i - i' within a neighbour,
    and from its token i to token i' of the chunk.

    Of the paper: the wiring, who sees which neighbours, the encoder's sub-layers, the conditioning on the chunk,
    embeddings that encoder and decoder share, and logits of the distance that are a linear map of sinusoids. Ours:
    sines as well as cosines, 32 in all; that every layer of the encoder attends to the chunk; no dropout in it; and no
    bias.

    Parameters
    ----------
    mixer, feed_forward, norm, dropout : as of `pre_norm`; norm and dropout are those of the cross-attention, too.
    n_heads, head_width : of the cross-attention (null: D / H).
    chunk : m, as in `data.retrieval`.
    k : neighbours of each chunk that a state has room for, and that cost is counted with.
    encoder_depth, encoder_width, encoder_heads, encoder_head_width : layers, width W (null: D), heads (null: `n_heads`)
        and channels of each (null: W over heads) of the encoder; the same in all layers.

    Raises `ValueError` where heads do not divide a width, or layers disagree about their encoder.
    """

    reference = Reference(
        "Borgeaud et al.",
        2022,
        "Improving Language Models by Retrieving from Trillions of Tokens",
        "https://arxiv.org/abs/2112.04426",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory | None,
        feed_forward: FeedForwardFactory | None,
        n_heads: int,
        head_width: int | None = None,
        chunk: int = 64,
        k: int = 2,
        encoder_depth: int = 2,
        encoder_width: int | None = None,
        encoder_heads: int | None = None,
        encoder_head_width: int | None = None,
        norm: NormFactory = RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__(context, mixer=mixer, feed_forward=feed_forward, norm=norm, dropout=dropout)
        D = context.d_model
        for name, size in (("n_heads", n_heads), ("chunk", chunk), ("k", k), ("encoder_depth", encoder_depth)):
            if size < 1:
                raise ValueError(f"retro: {name} is {size}; it must be at least 1")
        if head_width is None and D % n_heads:
            raise ValueError(
                f"retro: n_heads is {n_heads} and d_model {D}; n_heads must divide d_model, or give head_width"
            )
        self.neighbours_of = chunk
        encoder = {"depth": encoder_depth, "width": encoder_width or D, "heads": encoder_heads or n_heads}
        encoder["head_width"] = encoder_head_width or NeighbourEncoder.head_width(encoder["width"], encoder["heads"])
        self.cross_norm = norm(context)
        self.cross = ChunkedCrossAttention(
            context,
            n_heads=n_heads,
            head_width=head_width or D // n_heads,
            chunk=chunk,
            k=k,
            encoder=encoder,
            norm=norm,
            dropout=dropout,
        )

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Attention and a feed-forward, a recurrent mixer alone, and neither a mixer nor one neighbour's like."""
        sizes = {"n_heads": 4, "chunk": 4}
        attention = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
        narrow = {
            "n_heads": 2,
            "head_width": 6,
            "encoder_depth": 1,
            "encoder_width": 8,
            "encoder_heads": 2,
            "encoder_head_width": 6,
        }
        return [
            {"mixer": attention, "feed_forward": {"use": "mlp"}, **sizes},
            {"mixer": {"use": "rg_lru"}, "feed_forward": None, "dropout": 0.2, **sizes},
            {"mixer": None, "feed_forward": {"use": "mlp"}, "norm": {"use": "layer_norm"}, **sizes, **narrow},
        ]

    @property
    def inner(self) -> dict[str, StatefulPart]:
        """The parts that are there, by name."""
        return {**super().inner, "cross": self.cross}

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        return self._wired(x, sequence, state, self.cross)

    def naive(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """The same, with what is retrieved looked at token by token."""
        return self._wired(x, sequence, state, self.cross.naive)

    def _wired(self, x: Tensor, sequence: Sequence, state: Any, cross: Callable[..., Result]) -> Result:
        call = Calls(sequence, state)
        if self.mixer is not None:
            x = x + self.dropout(call("mixer", self.mixer, self.mixer_norm(x)))
        x = x + call("cross", cross, self.cross_norm(x))
        if self.feed_forward is not None:
            x = x + self.dropout(call("feed_forward", self.feed_forward, self.feed_forward_norm(x)))
        return call.result(x)
