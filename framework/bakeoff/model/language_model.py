"""A backbone and a head, assembled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.head import Head
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.counts import check_counts
from bakeoff.parts.vocabulary import Vocabulary


class LanguageModel(nn.Module):
    """What a recipe's `model:` section describes.

    Parameters
    ----------
    d_model : width D of the residual stream.
    vocab_size, max_length : from the tokenizer and the data, unless given.
    backbone : turns tokens into hidden states; `model.use` names it, `model`'s further keys are its arguments.
    head : turns hidden states into logits and their loss.
    tied_embedding : the head shares the backbone's input embedding.
    """

    backbone: Backbone
    head: Head

    def __init__(
        self,
        *,
        d_model: int,
        vocab_size: int,
        max_length: int,
        backbone: Callable[[LayerContext], Backbone],
        head: Callable[[LayerContext], Head] = Vocabulary,
        tied_embedding: bool = True,
    ):
        super().__init__()
        check_counts(d_model=d_model, vocab_size=vocab_size, max_length=max_length)
        self.context = LayerContext(d_model=d_model, vocab_size=vocab_size, max_length=max_length)
        self.tied_embedding = tied_embedding
        self.backbone = backbone(self.context)
        self.head = head(self.context)
        self._tie()

    def initialise(self, seed: int, device: torch.device | str = "cpu") -> LanguageModel:
        """Fill all parameters by (seed, name), on `device` if they stand on the meta device; returns itself."""
        if self.backbone.embedding.is_meta:
            self.to_empty(device=device)
            self._tie()
        initialise(self, seed=seed, depth=len(self.backbone.layers))
        return self

    def logits(self, tokens: Tensor, state: Any = None, *, real: Tensor | None = None) -> tuple[Tensor, Any]:
        """Logits (B, T, V) of `tokens` (B, T), and the state after them where one is given."""
        sequence = Sequence(tokens, real=real, past=None if state is None else state.past)
        result = self.backbone(sequence, state)
        return self.head(result.y), result.state

    def empty_state(self, batch: int, max_length: int | None = None) -> Any:
        """A state with nothing in it, in the parameters' dtype and on their device."""
        like = self.backbone.embedding
        return self.backbone.empty_state(batch, max_length or self.context.max_length, like.dtype, like.device)

    def flops(self, queries: int, keys: int) -> int:
        """Forward work of one row: its last `queries` tokens, `keys` in all."""
        return self.backbone.flops(queries, keys) + self.head.flops(queries, keys)

    def _tie(self) -> None:
        if self.tied_embedding:
            self.head.tie(self.backbone.embedding)
