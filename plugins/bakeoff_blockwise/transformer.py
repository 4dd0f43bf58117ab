"""The block whose mixer and feed-forward run chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import Capabilities, LayerContext, Need, Reference, Result, Sequence
from bakeoff.parts.attention.room import with_room
from bakeoff.parts.blocks.composed import Calls, FeedForwardFactory, MixerFactory, NormFactory
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.needs import gather
from bakeoff.parts.norms import RMSNorm
from torch import Tensor

from bakeoff_blockwise.anew import Anew, Turn
from bakeoff_blockwise.chunks import Chunks, joined, memory_of

R = TypeVar("R")


class BlockwiseTransformer(PreNorm):
    """`pre_norm` on `chunk` tokens after the other, from state to state; backward runs each chunk anew.

    Kept for backward are the input, the states between chunks and, with attention op `blockwise`, what attention gives;
    with other ops, attention is computed anew as well. What comes out is what `pre_norm` gives.

    Where ranks share out rows, the mixer works on all tokens that stand here at once, since every rank has a part in
    it; the feed-forward runs chunk by chunk where it is `token_local`.

    Parameters
    ----------
    mixer, feed_forward, norm, dropout : as in `pre_norm`.
    chunk : tokens that run at once.

    Raises `UserError` if `chunk` is under 1, `CapabilityError` where a part does not claim `state` in training: chunks
    would change what it computes.
    """

    reference = Reference(
        "Liu and Abbeel",
        2023,
        "Blockwise Parallel Transformer for Large Context Models",
        "https://arxiv.org/abs/2305.19370",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        mixer: MixerFactory | None,
        feed_forward: FeedForwardFactory | None,
        norm: NormFactory = RMSNorm,
        dropout: float = 0.0,
        chunk: int = 512,
    ):
        super().__init__(context, mixer=mixer, feed_forward=feed_forward, norm=norm, dropout=dropout)
        if chunk < 1:
            raise UserError(f"blockwise_transformer: chunk is {chunk}; it must be at least 1")
        for name, part in self.inner.items():
            if not part.capabilities.training.state:
                raise CapabilityError(
                    f"blockwise_transformer runs its {name} chunk by chunk, which would change what "
                    f"{type(part).__name__} computes in training: it does not claim `state` there; use pre_norm, or "
                    f"a {name} that claims it"
                )
        self.chunk, self.shared = chunk, context.parts

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Attention by either op and both parts, with dropout once; a feed-forward alone."""
        rope = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
        by_blocks = {**rope, "n_kv_heads": 2, "window": 5, "op": {"use": "blockwise", "chunk": 2}}
        return [
            {"mixer": rope, "feed_forward": {"use": "mlp"}, "dropout": 0.2, "chunk": 3},
            {"mixer": by_blocks, "feed_forward": {"use": "gated_mlp"}, "chunk": 4},
            {"mixer": None, "feed_forward": {"use": "mlp"}, "chunk": 1},
        ]

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What all parts can do, but for what needs all tokens at once."""
        return replace(super().capabilities, bidirectional=False, compile=False)

    def needs(self) -> tuple[Need, ...]:
        """The chunks."""
        return (self._chunks(),)

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """(B, T, D) -> (B, T, D)."""
        if sequence.spans is not None:
            return self._beside_ranks(x, sequence)
        chunks = sequence[self._chunks()]
        sizes = [chunk.length for chunk in chunks]
        begun = self._begin(x) if state is None and len(chunks) > 1 else state
        results: list[Result] = []
        turn = Turn()
        for part, chunk, memory in zip(x.split(sizes, 1), chunks, memory_of(sequence, sizes), strict=True):
            own = chunk.as_seen()
            own.memory = memory
            results.append(self._run(part, own, begun, turn))
            begun = results[-1].state
        y = torch.cat([result.y for result in results], 1)
        memory = joined([result.memory for result in results])
        return Result(y, None if state is None else begun, _added([result.aux for result in results]), memory)

    def naive(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        """All tokens at once."""
        return super().forward(x, sequence, state)

    def _beside_ranks(self, x: Tensor, sequence: Sequence) -> Result:
        """The tokens that stand here, where ranks share out rows."""
        call = Calls(sequence, None)
        if self.mixer is not None:
            x = x + self.dropout(call("mixer", self.mixer, self.mixer_norm(x)))
        if self.feed_forward is None:
            return call.result(x)
        if not self.feed_forward.capabilities.token_local:
            y = call("feed_forward", self.feed_forward, self.feed_forward_norm(x))
            return call.result(x + self.dropout(y))
        turn = Turn()
        given = [partial(self._feed_forward, part, sequence) for part in x.split(self.chunk, 1)]
        return call.result(x + self.dropout(torch.cat([self._anew(one, x, turn) for one in given], 1)))

    def _feed_forward(self, x: Tensor, sequence: Sequence) -> Tensor:
        assert self.feed_forward is not None
        return self.feed_forward(self.feed_forward_norm(x), sequence).y

    def _chunks(self) -> Chunks:
        parts = [*self.children(), *self.shared.values()]
        return Chunks(self.chunk, tuple(dict.fromkeys(need for part in parts for need in gather(part))))

    def _begin(self, x: Tensor) -> Any:
        """The states before the first token, with room for all."""
        with torch.enable_grad():  # states that grow as they do under gradients
            state = self.empty_state(x.shape[0], x.shape[1], x.dtype, x.device)
        return with_room(state, x.shape[1])

    def _run(self, x: Tensor, sequence: Sequence, state: Any, turn: Turn) -> Result:
        """One chunk, anew in backward."""
        return self._anew(partial(PreNorm.forward, self, x, sequence, state), x, turn)

    def _anew(self, call: Callable[[], R], x: Tensor, turn: Turn) -> R:
        """What a call gives, for which backward runs it again."""
        return Anew(call, turn, x.device, self.training).run() if torch.is_grad_enabled() else call()


def _added(sums: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of all chunks, key by key."""
    return {name: torch.stack([one[name] for one in sums]).sum(0) for name in sums[0]}
