"""Chunked cross-attention: what each token sees of the neighbours of the last whole chunk before it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import Capabilities, LayerContext, Need, Neighbours, Result, Sequence, StatefulPart
from bakeoff.interfaces.neighbours import EMBEDDED, NEIGHBOURS
from bakeoff.parts.collectives import entered
from bakeoff.parts.short_convolution import next_tail
from bakeoff.parts.spans import whole_row
from torch import Tensor, nn

from bakeoff_retro.encoder import ENCODED, NeighbourEncoder, NormFactory
from bakeoff_retro.places import ChunkPlaces, Places
from bakeoff_retro.plain import naive
from bakeoff_retro.relative import RelativeAttention, RelativeLogits

#: The name under which layers share the encoder.
ENCODER = "neighbour_encoder"


class _Found(NamedTuple):
    """`encoded` (B, C, k L, W), and `real` (B, C, k L), of the neighbours of chunks."""

    encoded: Tensor
    real: Tensor


class ChunkedCrossAttention(StatefulPart):
    """Tokens from a chunk's last on, m of them, attend to all tokens of its k neighbours, L = 2 m each; others get 0.

    The first layer that is built has the neighbours encoded, and shows later layers what came of it. Its state holds
    the last m - 1 inputs; every layer's holds keys and values of the neighbours of the latest whole chunk.

    Parameters
    ----------
    n_heads, head_width : H and N. chunk : m. k : of a state, and of what cost is counted with.
    encoder : sizes of the encoder, W its width. dropout : on what comes out.
    """

    reads = (EMBEDDED,)
    capabilities = Capabilities(
        documents=True, padding=True, state=True, constant_state=True, compile=True, context_parallel=True
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        head_width: int,
        chunk: int,
        k: int,
        encoder: Mapping[str, Any],
        norm: NormFactory,
        dropout: float,
    ):
        super().__init__(context)
        D, W = context.d_model, encoder["width"]
        self.chunk, self.k, self.places = chunk, k, ChunkPlaces(chunk)
        self.first = ENCODER not in context.parts
        self.encoder = context.shared(ENCODER, partial(NeighbourEncoder, chunk=chunk, norm=norm, **encoder))
        self._check(encoder)
        logits = RelativeLogits(context, n_heads=n_heads, queries=chunk, keys=2 * chunk, shift=chunk - 1)
        size = {"d_query": D, "d_key": W, "n_heads": n_heads, "head_width": head_width}
        self.attention = RelativeAttention(context, logits=logits, **size)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def needs(self) -> tuple[Need, ...]:
        """Where chunks and those who see them stand."""
        return (self.places,)

    def empty_state(
        self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None
    ) -> dict[str, Tensor]:
        """No neighbours, and in the first layer no inputs; its size is that of the neighbours of one chunk."""
        keys, inner = self.k * 2 * self.chunk, self.attention.key.out_features
        like = partial(torch.zeros, device=device)
        state = {
            "keys": like(batch, keys, inner, dtype=dtype),
            "values": like(batch, keys, inner, dtype=dtype),
            "real": like(batch, keys, dtype=torch.bool),
        }
        if self.first:
            state["inputs"] = like(batch, self.chunk - 1, self.attention.query.in_features, dtype=dtype)
        return state

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        places: Places = sequence[self.places]
        found = self._found(x, sequence, places, state)
        memory = {ENCODED: None if found is None else found.encoded} if self.first else {}
        if found is None and state is None:
            return Result(torch.zeros_like(x), None, memory=memory)
        q, logits = self.attention.query(x), self.attention.logits()
        answers, pairs = [], None
        if found is not None:
            pairs = self.attention.key(found.encoded), self.attention.value(found.encoded)  # (B, C, k L, H N)
            answers.append(self._of_chunks(q, logits, pairs, found.real, places))
        if state is not None:
            answers.append(self._of_past(q, logits, state, places))
            state = self._after(x, sequence, state, places, pairs, None if found is None else found.real)
        answer = torch.cat(answers, 1)
        if not answer.shape[1]:
            return Result(torch.zeros_like(x), state, memory=memory)
        answer = answer.flatten(0, 1).index_select(0, places.slots).view_as(q)
        y = self.attention.output(torch.where(places.sees, answer, 0))
        return Result(self.dropout(y), state, memory=memory)

    def _found(self, x: Tensor, sequence: Sequence, places: Places, state: Any) -> _Found | None:
        """The neighbours of the chunks that end in the call, encoded; None where there are none."""
        given: Neighbours | None = sequence.memory.get(NEIGHBOURS)
        if given is None or not given.tokens.shape[1] or not sequence.length:
            return None
        self._fits(given, state)
        real = given.real if places.chunks is None else _chosen(given.real, places.chunks)
        if self.first:
            return _Found(self._encoded(x, real, sequence, state), real.flatten(2))
        encoded = sequence.memory.get(ENCODED)
        if encoded is None:  # a layer without those before it: what was found for its chunks is nothing
            encoded = x.new_zeros(*real.shape[:2], real[0, 0].numel(), self.attention.key.in_features)
        return _Found(encoded, real.flatten(2))

    def _encoded(self, x: Tensor, real: Tensor, sequence: Sequence, state: Any) -> Tensor:
        """(B, C, k L, W)."""
        if EMBEDDED not in sequence.memory:
            raise CapabilityError(
                f"retro reads the backbone's embeddings of what was found, {EMBEDDED}; this backbone shows none: use "
                "backbone decoder"
            )
        places: Places = sequence[self.places]
        texts = sequence.memory[EMBEDDED].to(x.dtype)
        texts = texts if places.chunks is None else _chosen(texts, places.chunks)
        if sequence.spans is not None:  # each rank encodes those that its tokens see, of all tokens of their chunks
            x = entered(whole_row(x, sequence.spans), sequence.spans.group)
        if state is not None:
            x = torch.cat([state["inputs"].to(x.dtype), x], 1)
        (B, C), D = real.shape[:2], x.shape[2]
        inside = x.flatten(0, 1).index_select(0, places.inside).view(B * C, self.chunk, D)
        return self.encoder(texts.flatten(0, 1), real.flatten(0, 1), inside).unflatten(0, (B, C))

    def _of_chunks(
        self, q: Tensor, logits: Tensor, pairs: tuple[Tensor, Tensor], real: Tensor, places: Places
    ) -> Tensor:
        """(B, C S, H N): answers to the tokens from the last of each chunk on."""
        B, C = real.shape[:2]
        queries = q.flatten(0, 1).index_select(0, places.queries).view(B * C, -1, q.shape[2])
        keys, values = (t.flatten(0, 1) for t in pairs)
        logits = logits[:, : queries.shape[1]].repeat(1, 1, real.shape[2] // logits.shape[2])
        return self.attention.attend(queries, keys, values, logits[None], real.flatten(0, 1)).view(B, -1, q.shape[2])

    def _of_past(self, q: Tensor, logits: Tensor, state: Any, places: Places) -> Tensor:
        """(B, R, H N): answers to the tokens that go on with the chunk before the call, 0 where nothing was found."""
        B, real = len(q), state["real"]
        queries = q.flatten(0, 1).index_select(0, places.carried).view(B, -1, q.shape[2])
        if not queries.shape[1]:
            return queries
        logits = logits.index_select(1, places.distance).unflatten(1, (B, -1)).transpose(0, 1)
        logits = logits.repeat(1, 1, 1, self.k)
        keys, values = (state[name].to(q.dtype) for name in ("keys", "values"))
        answer = self.attention.attend(queries, keys, values, logits, real)
        return torch.where(real.any(1)[:, None, None], answer, 0)

    def _after(self, x: Tensor, sequence: Sequence, state: Any, places: Places, pairs: Any, real: Tensor | None) -> Any:
        """The state after the call: of the latest chunk, if one ended in it, and else as it was."""
        after = dict(state)
        if self.first:
            after["inputs"] = next_tail(state["inputs"], x, None, sequence.real)
        after["real"] = state["real"] & ~places.ended
        if pairs is not None and real is not None:
            rows = torch.arange(len(x), device=x.device)
            for name, fresh in (("keys", pairs[0]), ("values", pairs[1])):
                latest = self._wide(fresh[rows, places.latest]).to(state[name].dtype)
                after[name] = torch.where(places.known[:, :, None], latest, state[name])
            after["real"] = torch.where(places.known, self._wide(real[rows, places.latest]), after["real"])
        return after

    def _wide(self, of_neighbours: Tensor) -> Tensor:
        """(B, k' L, …) -> (B, k L, …), with nothing in place of neighbours that are lacking."""
        missing = self.k * 2 * self.chunk - of_neighbours.shape[1]
        return (
            nn.functional.pad(of_neighbours, (*[0, 0] * (of_neighbours.ndim - 2), 0, missing))
            if missing
            else of_neighbours
        )

    def naive(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """The same, one token after another."""
        return naive(self, x, sequence, state)

    def flops(self, queries: int, keys: int) -> int:
        """Of the whole chunks that end in the call, k neighbours of 2 m tokens each, and of the tokens that see some.

        The first layer's work is the encoder's, too; the map of distances, the same for all rows, is not counted.
        """
        m, tokens = self.chunk, self.k * 2 * self.chunk
        chunks, seeing = keys // m - (keys - queries) // m, min(queries, max(0, keys - m + 1))
        own = self.attention.query_flops(seeing) + self.attention.pairs_flops(seeing * tokens)
        encoder = self.encoder.module.flops(tokens, tokens) if self.first else 0
        return own + chunks * (self.attention.key_flops(tokens) + encoder)

    def _check(self, wanted: Mapping[str, Any]) -> None:
        sizes = self.encoder.module.sizes
        wanted = {**{f"encoder_{name}": size for name, size in wanted.items()}, "chunk": self.chunk}
        for name, size in wanted.items():
            if sizes[name] != size:
                raise ValueError(
                    f"retro: {name} is {sizes[name]} in one layer and {size} in another; all layers share one encoder, "
                    "so these must be the same"
                )

    def _fits(self, given: Neighbours, state: Any) -> None:
        k, length = given.tokens.shape[2:]
        if length != 2 * self.chunk:
            raise ValueError(
                f"retro: neighbours have {length} tokens, and chunk is {self.chunk}; they must have twice as many, "
                f"{2 * self.chunk}"
            )
        if state is not None and k > self.k:
            raise ValueError(f"retro: {k} neighbours of each chunk are given, and a state has room for k = {self.k}")


def _chosen(of_chunks: Tensor, chunks: Tensor) -> Tensor:
    """(B, C, …) -> (B, C', …): those of the numbers `chunks` (B, C')."""
    rows = torch.arange(len(chunks), device=chunks.device)[:, None]
    return of_chunks[rows, chunks]
