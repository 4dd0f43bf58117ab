"""Retrieval in context: what was found stands before the text, in a row of its own for each stretch of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.component import Capabilities, Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.neighbours import NEIGHBOURS, Neighbours
from bakeoff.interfaces.objective import Feedback
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.past import Past
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.state import replaced, select
from torch import Tensor

from bakeoff_retro.around import Around
from bakeoff_retro.stretches import Stretches, laid_out, stretches, texts


class PrependState(NamedTuple):
    """What `Prepend` carries from call to call.

    `inner`: the inner backbone's state of each row's present stretch, with all that stands before it. `tail`: (B,
    context) long, the row's last real tokens, the latest last. `like`: (B, 0), of the dtype that states are kept in.
    """

    inner: Any
    tail: Tensor
    like: Tensor
    past: Past


class _Run(NamedTuple):
    """One call of the inner backbone on n rows of width W, and what its choices learn from, by name; `at` (B, T) long:
    which of the n W places is a token's own, -1 for tokens of other runs."""

    result: Result
    feedback: dict[str, Feedback]
    at: Tensor


class Prepend(Around):
    """Retrieval in context (Ram et al. 2023): the texts that are like a chunk are read before what follows it.

    The tokens of a document are cut at the last token p of each whole chunk. The hidden states of a stretch, of the
    tokens from p to before the next chunk's last, are those that the inner backbone gives them in a row
    [the chunk's neighbours, the nearest last] [up to `context` tokens of the document before p] [the stretch], whose
    first token has position 0. Tokens before the first whole chunk's last see no neighbours and are run from the
    document's first. Only a stretch's own hidden states are taken.

    Without neighbours (the memory has none, or none of a chunk was found) a stretch is run on its context alone: as by
    the inner backbone by itself, where the context reaches the document's first token, and as by one that sees no
    further back, where it does not.

    State: the inner state of each row's present stretch, begun anew by a prefill where a chunk ends. It is bounded by
    what a stretch's row can hold, and does not go on between training windows.

    Parameters
    ----------
    chunk : tokens of a chunk, at whose end what is found is read.
    backbone : the inner one, which claims `causal`, `padding` and `row_local`.
    context : tokens of the document that are read again before each stretch.
    k : texts of a chunk that are read, the nearest of those found; each is of at most 2 x `chunk` tokens.
    """

    reference = Reference(
        "Ram et al.", 2023, "In-Context Retrieval-Augmented Language Models", "https://arxiv.org/abs/2302.00083"
    )
    reads_again = True

    def __init__(
        self,
        place: LayerContext,
        /,
        *,
        backbone: Callable[[LayerContext], Backbone],
        chunk: int = 64,
        context: int = 128,
        k: int = 2,
    ):
        for name, value, least in (("chunk", chunk, 1), ("context", context, 0), ("k", k, 1)):
            if value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")
        longest = k * 2 * chunk + context + chunk
        super().__init__(place.child(max_length=longest), backbone)
        _check(self.backbone)
        self.chunk, self.context, self.k, self.longest = chunk, context, k, longest
        self.neighbours_of = chunk

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A context that begins within a document, and none at all with one text a chunk."""
        layer = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}}
        layer["feed_forward"] = {"use": "mlp"}
        inner = {"use": "decoder", "depth": 2, "pattern": ["layer"], "blocks": {"layer": layer}}
        return [{"chunk": 4, "context": 6, "backbone": inner}, {"chunk": 3, "context": 0, "k": 1, "backbone": inner}]

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What the inner backbone can do on rows of one document; a row's documents are never in one of these."""
        inner = self.backbone.capabilities
        return replace(
            inner,
            documents=True,
            constant_state=False,
            bidirectional=False,
            context_parallel=False,
            token_local=False,
            lost_in_training=inner.lost_in_training - {"documents"},
        )

    def forward(self, sequence: Sequence, state: PrependState | None = None) -> Result:
        """Hidden states (B, T, D) of `sequence.tokens`; those of padding are zeros."""
        begun = stretches(sequence, self.chunk, self.context)
        stream = self._stream(sequence, begun, state)
        every = torch.arange(len(begun.row), device=stream.device)
        if state is None:
            apart = every[begun.whole < 0], every[begun.whole >= 0]  # with nothing before them, and with texts
            return self._result(sequence, [self._begin(sequence, begun, one, stream) for one in apart if len(one)])
        runs = [] if bool(begun.last.all()) else [self._begin(sequence, begun, every[~begun.last], stream)]
        inner = state.inner
        if not len(every) or bool((begun.of == -1).any()):
            runs.append(self._go_on(sequence, begun, stream, inner))
            inner = runs[-1].result.state
        if len(every):
            last = every[begun.last]
            runs.append(self._begin(sequence, begun, last, stream, state))
            inner = _where(begun.row[last], runs[-1].result.state, inner, sequence.batch)
        tail = stream.gather(1, begun.count[:, -1:] + torch.arange(self.context, device=stream.device))
        after = PrependState(inner, tail, state.like, state.past.advance(sequence))
        return self._result(sequence, runs, after)

    def empty_state(
        self,
        batch: int,
        max_length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> PrependState:
        """The inner backbone's empty state for a stretch and all that stands before it, and no tokens."""
        inner = self.backbone.empty_state(batch, self.longest, dtype, device)
        tail = torch.zeros(batch, self.context, dtype=torch.long, device=device)
        like = torch.zeros(batch, 0, dtype=dtype, device=device)
        return PrependState(inner, tail, like, Past(batch, max_length, device))

    def flops(self, queries: int, keys: int) -> int:
        """What the inner backbone does for the last `queries` of one document's `keys` tokens.

        Each whole chunk is taken to have found `k` texts of 2 x `chunk` tokens. What stands before a stretch counts
        where the stretch begins among the queries.
        """
        starts = [0, *(p for p in range(self.chunk - 1, keys, self.chunk) if p)]
        work = 0
        for start, stop in zip(starts, [*starts[1:], keys], strict=True):
            if stop <= keys - queries:
                continue
            before = min(self.context, start)
            if (start + 1) % self.chunk == 0:
                before += self.k * 2 * self.chunk
            held = keys - queries - start  # tokens of the stretch that came before
            work += self.backbone.flops(
                before + stop - start if held <= 0 else stop - start - held, before + stop - start
            )
        return work

    def _stream(self, sequence: Sequence, begun: Stretches, state: PrependState | None) -> Tensor:
        """(B, context + T): the tokens before the call, as many as a context has, and its real ones, then padding."""
        tokens = sequence.tokens
        if sequence.real is not None:
            tokens = tokens.gather(1, (~sequence.real).long().argsort(dim=1, stable=True))
        tail = tokens.new_zeros(len(tokens), self.context) if state is None else state.tail
        return torch.cat([tail, tokens], 1)

    def _begin(
        self, sequence: Sequence, begun: Stretches, which: Tensor, stream: Tensor, state: PrependState | None = None
    ) -> _Run:
        """The stretches `which` (n,), each after its texts and its context; kept in a state where one is given."""
        row, whole, before = begun.row[which], begun.whole[which], begun.before[which]
        found = self._found(sequence, row, whole) if bool((whole >= 0).any()) else None
        first, length = self.context + begun.first[which] - before, before + begun.length[which]
        tokens, real, ahead = laid_out(found, stream, row, first, length, int(length.max()))
        inner = None
        if state is not None:
            with torch.set_grad_enabled(not state.past.slots):
                inner = self.backbone.empty_state(len(row), self.longest, state.like.dtype, state.like.device)
        rank = torch.full((len(begun.row) + 2,), -1, device=which.device)
        rank[which] = torch.arange(len(which), device=which.device)
        rank = rank[begun.of]  # of -1 and -2: the two places behind
        at = rank * tokens.shape[1] + (ahead + before)[rank] + begun.offset
        return self._run(tokens, real, torch.where(rank < 0, -1, at), inner)

    def _go_on(self, sequence: Sequence, begun: Stretches, stream: Tensor, inner: Any) -> _Run:
        """What each row has of the stretch that its state is in."""
        mine = begun.of == -1
        if not len(begun.row) and sequence.real is None:
            at = torch.arange(mine.numel(), device=stream.device).view(mine.shape)
            return self._run(sequence.tokens, None, at, inner)
        width = max(min(self.chunk - 1, sequence.length), 1)
        tokens = stream[:, self.context : self.context + width]
        real = torch.arange(width, device=stream.device) < mine.sum(1, keepdim=True)
        at = torch.arange(len(mine), device=stream.device)[:, None] * width + begun.offset
        return self._run(tokens, real, torch.where(mine, at, -1), inner)

    def _run(self, tokens: Tensor, real: Tensor | None, at: Tensor, inner: Any) -> _Run:
        sequence = Sequence(tokens, real=real, past=None if inner is None else inner.past)
        result = self.backbone(sequence, inner)
        feedback = {name: shown for name, shown in sequence.memory.items() if name.startswith("feedback.")}
        return _Run(result, feedback, at)

    def _found(self, sequence: Sequence, row: Tensor, whole: Tensor) -> tuple[Tensor, Tensor] | None:
        neighbours: Neighbours | None = sequence.memory.get(NEIGHBOURS)
        if neighbours is not None and neighbours.tokens.shape[3] > 2 * self.chunk:
            raise ValueError(
                f"texts that were found have {neighbours.tokens.shape[3]} tokens; those of chunks of {self.chunk} have "
                f"at most {2 * self.chunk}"
            )
        return texts(neighbours, row, whole, self.k)

    def _result(self, sequence: Sequence, runs: list[_Run], state: PrependState | None = None) -> Result:
        aux: dict[str, Tensor] = {}
        for run in runs:
            aux |= {name: value + aux[name] if name in aux else value for name, value in run.result.aux.items()}
        for name in {name for run in runs for name in run.feedback}:
            sequence.memory[name] = _own([(run.feedback[name], run.at) for run in runs if name in run.feedback])
        y = self.embedding.new_zeros(*sequence.tokens.shape, self.embedding.shape[1])
        return Result(_picked(y, [(run.result.y, run.at) for run in runs]), state, aux)


def _check(backbone: Backbone) -> None:
    """Raise `CapabilityError` where the inner backbone cannot be run on stretches beside each other."""
    claims = backbone.capabilities
    for needed, reason in (
        ("causal", "it is run on what comes after a text"),
        ("padding", "stretches are of unlike lengths"),
        ("row_local", "stretches of a text are rows beside each other"),
    ):
        if not getattr(claims.training, needed):
            raise CapabilityError(
                f"prepend: its inner backbone, {type(backbone).__name__}, does not claim `{needed}`, and {reason}; "
                "use parts that claim it (bakeoff show NAME)"
            )
    for part in backbone.modules():
        if isinstance(part, Part) and part.neighbours_of is not None:
            raise CapabilityError(
                f"prepend: {type(part).__name__}, inside its inner backbone, reads neighbours, which stand in the rows "
                "there and not beside them; use one of the two"
            )


def _picked(y: Tensor, runs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """`y` (B, T, …) with what each run's (n, W, …) has at its places (B, T); -1 leaves what is there."""
    for given, at in runs:
        other = (at < 0).view(*at.shape, *[1] * (y.ndim - 2))
        y = torch.where(other, y.to(given.dtype), given.flatten(0, 1)[at.clamp_min(0)])
    return y


def _own(runs: list[tuple[Feedback, Tensor]]) -> Feedback:
    """What choices for the tokens (B, T) themselves learn from, of runs and their places; padding learns nothing."""
    first, at = runs[0]
    chosen = _picked(first.log_probability.new_zeros(at.shape), [(shown.log_probability, at) for shown, at in runs])
    baseline = _picked(first.baseline.new_zeros(at.shape), [(shown.baseline, at) for shown, at in runs])
    return Feedback(chosen, baseline, first.coefficient)


def _where(rows: Tensor, begun: Any, held: Any, batch: int) -> Any:
    """The state of `batch` rows: of `rows` (n,) that of `begun`, which has n, of the others that of `held`."""
    if len(rows) == batch:
        return begun
    number = torch.zeros(batch, dtype=torch.long, device=rows.device)
    number[rows] = torch.arange(len(rows), device=rows.device)
    fresh = torch.zeros(batch, dtype=torch.bool, device=rows.device)
    fresh[rows] = True
    return replaced(held, fresh, select(begun, number))
