"""A backbone under test that embeds tokens more than once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.sequence import Sequence
from bakeoff.testing.batch import Held
from bakeoff.testing.subject import BackboneSubject, told


class _Embedded(NamedTuple):
    """What stood in for the embedding at each place so far: `tokens` (B, S), by which it is called there, and `x`."""

    tokens: Tensor
    x: Tensor


def of_backbone(root: nn.Module, backbone: Backbone, place: LayerContext, **given: Any) -> BackboneSubject:
    """The backbone under test, see `Subject`, whichever way it embeds."""
    return (Rereading if backbone.reads_again else BackboneSubject)(root, backbone, place, **given)


class Rereading(BackboneSubject):
    """A backbone that embeds a token in any call and row.

    Each place has a token of its own, beyond the vocabulary, that stands for its `x`; whatever else is embedded has
    what the table gives. In the place of a past, `Held` has what was embedded so far.
    """

    def begin(self, rows: int, length: int, dtype: torch.dtype | None = None) -> Held:
        """The backbone's own empty state."""
        none = _Embedded(torch.zeros(rows, 0).long(), torch.zeros(rows, 0, self.place.d_model, dtype=self.dtype))
        return super().begin(rows, length, dtype)._replace(past=none)

    def carried(self, held: Held) -> Held:
        """As the backbone does it."""
        return super().carried(held)._replace(past=held.past._replace(x=held.past.x.detach()))

    def _after(self, state: Any, before: Held, sequence: Sequence) -> Held:
        return Held(state, self._embedded(sequence.memory["embedding"].cpu(), before))

    def _embedded(self, x: Tensor, held: Held | None) -> _Embedded:
        """What is embedded once `x` (B, T, D) comes."""
        B, T, _ = x.shape
        past: Any = None if held is None else held.past
        first = self.place.vocab_size if past is None or not past.tokens.numel() else int(past.tokens.max()) + 1
        tokens = torch.arange(first, first + B * T).view(B, T)
        if past is None:
            return _Embedded(tokens, x)
        return _Embedded(torch.cat([past.tokens, tokens], 1), torch.cat([past.x, x], 1))

    def call(self, x: Tensor, sequence: Sequence, held: Held | None = None) -> Any:
        """What `forward` returns with `x` in place of the embeddings."""
        embedded = self._embedded(x, held)
        seen = sequence.as_seen()
        seen.tokens = embedded.tokens[:, embedded.tokens.shape[1] - x.shape[1] :].to(self.device)
        with told(x, held), self._embeds(embedded):
            return self._back(self.module(seen, None if held is None else held.state))

    @contextmanager
    def _embeds(self, embedded: _Embedded) -> Iterator[None]:
        """The backbone's embedding gives `embedded.x` for the tokens that stand for it."""
        table, V = self.module.embedding, self.place.vocab_size
        owner = next(m for m in self.module.modules() if any(p is table for p in m.parameters(recurse=False)))
        usual: Any = owner.forward
        tokens, x = embedded.tokens.flatten().to(self.device) - V, embedded.x.flatten(0, 1).to(self.device)
        vectors = x.new_zeros(int(tokens.max()) + 1 if len(tokens) else 1, x.shape[1]).index_put((tokens,), x)

        def embed(tokens: Tensor) -> Tensor:
            own = (tokens < V)[..., None]
            return torch.where(own, usual(tokens.clamp_max(V - 1)), vectors[(tokens - V).clamp_min(0)])

        owner.forward = embed
        try:
            yield
        finally:
            del owner.forward
