"""Chunked cross-attention by its formula, one token after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from bakeoff.interfaces import Neighbours, Result, Sequence
from bakeoff.interfaces.neighbours import EMBEDDED, NEIGHBOURS
from torch import Tensor

from bakeoff_retro.encoder import ENCODED

if TYPE_CHECKING:
    from bakeoff_retro.cross_attention import ChunkedCrossAttention


class _Seen(NamedTuple):
    """Of the latest whole chunk: keys and values (k L, H N), and which are there, (k L,)."""

    keys: Tensor
    values: Tensor
    real: Tensor


def naive(cross: ChunkedCrossAttention, x: Tensor, sequence: Sequence, state: Any) -> Result:
    """What `cross` computes, (B, T, D) -> (B, T, D)."""
    rows = [_Row(cross, x, sequence, state, b) for b in range(len(x))]
    y = torch.stack([torch.stack([row.next(t) for t in range(x.shape[1])]) for row in rows])
    memory = {}
    if cross.first:
        given = sequence.memory.get(NEIGHBOURS)
        memory[ENCODED] = None if given is None else torch.stack([row.shown() for row in rows])
    after = None
    if state is not None:
        told = [row.state() for row in rows]
        after = {name: torch.stack([one[name] for one in told]) for name in state}
    return Result(cross.dropout(y), after, memory=memory)


class _Row:
    def __init__(self, cross: ChunkedCrossAttention, x: Tensor, sequence: Sequence, state: Any, b: int):
        self.cross, self.sequence, self.b, self.x = cross, sequence, b, x[b]
        nothing = [] if state is None else list(_Seen._fields)
        self.seen = _Seen(*(state[name][b] for name in nothing)) if nothing else None
        self.inputs = list(state["inputs"][b]) if state is not None and cross.first else []
        self.given: Neighbours | None = sequence.memory.get(NEIGHBOURS)
        self.encoded: dict[int, Tensor] = {}

    def next(self, t: int) -> Tensor:
        """(D,): what token t gets; 0 if it sees nothing."""
        sequence, b, m = self.sequence, self.b, self.cross.chunk
        if sequence.real is not None and not sequence.real[b, t]:
            return torch.zeros_like(self.x[t])
        self.inputs = [*self.inputs, self.x[t]][-m:]
        position = int(sequence.positions.expand(len(sequence.tokens), -1)[b, t])
        if (position + 1) % m == 0:
            self.seen = self._found(int(sequence.index.expand(len(sequence.tokens), -1)[b, t]))
        if position + 1 < m or self.seen is None or not bool(self.seen.real.any()):
            return torch.zeros_like(self.x[t])
        return self._answer(self.x[t], (position + 1) % m, self.seen)

    def _found(self, index: int) -> _Seen | None:
        """What was found for the chunk that ends at this index."""
        if self.given is None:
            return None
        for c, last in enumerate(self.given.last[self.b].tolist()):
            if last == index:
                real = self.given.real[self.b, c]
                encoded = self._encoded(c)
                if encoded is None:
                    return None
                attention = self.cross.attention
                return _Seen(attention.key(encoded), attention.value(encoded), real.flatten())
        return None

    def _encoded(self, c: int) -> Tensor | None:
        if not self.cross.first:
            shown = self.sequence.memory.get(ENCODED)
            return None if shown is None else shown[self.b, c]
        given = self.given
        assert given is not None
        chunk = torch.stack(self.inputs)
        texts = self.sequence.memory[EMBEDDED][self.b, c]
        self.encoded[c] = self.cross.encoder.module.naive(texts, given.real[self.b, c], chunk)
        return self.encoded[c]

    def _answer(self, token: Tensor, behind: int, seen: _Seen) -> Tensor:
        attention = self.cross.attention
        logits = attention.logits.naive()[:, behind : behind + 1]
        logits = logits.repeat(1, 1, len(seen.real) // logits.shape[2])
        query = attention.query(token[None])
        keys, values = seen.keys.to(query.dtype), seen.values.to(query.dtype)
        return attention.output(attention.naive(query, keys, values, logits, seen.real))[0]

    def shown(self) -> Tensor:
        """(C, k L, W)."""
        assert self.given is not None
        C, (k, L) = self.given.last.shape[1], self.given.tokens.shape[2:]
        width = self.cross.attention.key.in_features
        rest = self.x.new_zeros(k * L, width)
        return torch.stack([self.encoded.get(c, rest) for c in range(C)]) if C else self.x.new_zeros(0, k * L, width)

    def state(self) -> dict[str, Tensor]:
        """After the last token."""
        cross = self.cross
        if self.seen is None:
            inner, keys = cross.attention.key.out_features, cross.k * 2 * cross.chunk
            nothing = self.x.new_zeros(keys, inner)
            told = {"keys": nothing, "values": nothing, "real": nothing.new_zeros(keys, dtype=torch.bool)}
        else:
            told = dict(self.seen._asdict())
        if cross.first:
            inputs = self.inputs[len(self.inputs) - cross.chunk + 1 :] if cross.chunk > 1 else []
            told["inputs"] = torch.stack(inputs) if inputs else self.x[:0]
        return told
