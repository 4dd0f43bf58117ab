"""The rows of a batch while they are decoded: their states, and what belongs to each beside them."""

from __future__ import annotations

import torch
from torch import Tensor

from bakeoff.interfaces.init import generator
from bakeoff.interfaces.sampler import Sampler
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.state import select
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.model.language_model import LanguageModel
from bakeoff.model.looking import Looking, Lookup, reads_neighbours
from bakeoff.parts.drawable import drawable

#: Tokens, of all rows together, that one call of the prefill takes at most.
PREFILL_TOKENS = 8192


class Rows:
    """Prompts of any lengths, padded on the left, each of them `copies` rows; after `prefill`, `choose` and `advance`
    take turns.

    `new` has how many ids each prompt's rows may draw at most. Each row draws by numbers of its own, a function of
    (seed, prompt's number, copy's number, step). `lookup` is searched for what is like a chunk as soon as a row has
    completed it. Used under `inference_mode`.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        prompts: list[list[int]],
        new: list[int],
        seed: int,
        lookup: Lookup | None = None,
        copies: int = 1,
        first: int = 0,
    ):
        self.model, self.padding, self.copies = model, tokenizer.padding, copies
        device, V = model.backbone.embedding.device, model.context.vocab_size
        self.lengths = list(map(len, prompts))
        longest = max(self.lengths)
        pads = torch.tensor([longest - length for length in self.lengths])
        rows = [[self.padding] * (longest - len(prompt)) + prompt for prompt in prompts]
        self.prompts = torch.tensor(rows, device=device)
        self.padded = int(pads.max())
        self.real = (torch.arange(longest) >= pads[:, None]).to(device)
        self.seen = torch.zeros(len(rows), V, dtype=torch.bool, device=device).scatter_(1, self.prompts, True)
        draws = [uniform(seed, first + row, copy, max(new)) for row in range(len(rows)) for copy in range(copies)]
        self.uniform = torch.stack(draws).to(device)
        allowed = drawable(V, tokenizer.text_size, device)
        self.never = torch.zeros(V, device=device).masked_fill(~allowed, -torch.inf)
        self.capacity = max(map(sum, zip(self.lengths, new, strict=True)))
        self.state = model.empty_state(len(rows), self.capacity)
        self.looking = Looking(lookup, model, prompts) if lookup is not None and reads_neighbours(model) else None
        self.step, self.idle = 0, 0
        self.logits: Tensor

    def prefill(self) -> None:
        """Take in the prompts, chunk by chunk, and make the rows of each."""
        B, T = self.prompts.shape
        chunk = max(1, PREFILL_TOKENS // B)
        for start in range(0, T, chunk):
            part = slice(start, min(start + chunk, T))
            real = self.real[:, part] if start < self.padded else None
            counts = self.real[:, part].sum(1).tolist() if self.looking else []
            hidden = self._forward(self.prompts[:, part], real, counts)
        self.logits = self._head(hidden)
        if self.copies > 1:
            rows = self._take([row for row in range(B) for _ in range(self.copies)])
            self.logits = self.logits[rows]

    def choose(self, sampler: Sampler) -> Tensor:
        """The next id of each row, (B,)."""
        return sampler.choose(self.logits.float(), self.seen, self.uniform[:, self.step])

    def log_probabilities(self, chosen: Tensor) -> Tensor:
        """Of the ids `chosen` (B,), among all that may be drawn, under the model itself; float32 at least."""
        return self.logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]

    def advance(self, chosen: Tensor, ended: list[bool]) -> list[int]:
        """Take in one id a row; returns the places of the rows that are left.

        Rows that have ended take padding until they are dropped.
        """
        places = self._left(ended)
        if len(places) < len(ended):
            rows = self._take(places)
            chosen, self.uniform = chosen[rows], self.uniform[rows]
            ended = [ended[place] for place in places]
        if any(ended):
            chosen = chosen.masked_fill(torch.tensor(ended, device=chosen.device), self.padding)
        if self.looking is not None:
            self.looking.push(chosen.tolist(), ended)
        tokens = chosen[:, None]
        self.seen.scatter_(1, tokens, True)
        self.logits = self._head(self._forward(tokens, None, [1] * len(ended)))
        self.step += 1
        return places

    def _left(self, ended: list[bool]) -> list[int]:
        """All places, or those of rows that go on: where ended rows have no room for another id, or cost too much.

        Dropping copies the states that stay, at most the work of a step of those rows: it pays once rows that have
        ended have taken as many steps, whatever is still to come. They take less than that between two drops.
        """
        alive = [place for place, over in enumerate(ended) if not over]
        self.idle += len(ended) - len(alive)
        full = self.capacity - self.step
        if self.idle < len(alive) and not any(
            over and length == full for over, length in zip(ended, self.lengths, strict=True)
        ):
            return list(range(len(ended)))
        self.idle = 0
        return alive

    def _take(self, places: list[int]) -> Tensor:
        """Make the states of the rows at `places`, which may repeat, those of the batch; returns `places` (B,)."""
        rows = torch.tensor(places, device=self.seen.device)
        self.state, self.seen = select(self.state, rows), self.seen[rows]
        self.lengths = [self.lengths[place] for place in places]
        if self.looking is not None:
            self.looking.take(places)
        return rows

    def _forward(self, tokens: Tensor, real: Tensor | None, counts: list[int]) -> Tensor:
        memory = None if self.looking is None else self.looking.memory(counts, tokens.device)
        sequence = Sequence(tokens, real=real, memory=memory, past=self.state.past)
        result = self.model.backbone(sequence, self.state)
        self.state = result.state
        return result.y

    def _head(self, hidden: Tensor) -> Tensor:
        """Logits of the next id, -inf for what is never drawn; float32 at least."""
        logits = self.model.head(hidden[:, -1:])[:, 0]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) + self.never


def uniform(seed: int, row: int, copy: int, count: int) -> Tensor:
    """The numbers in [0, 1) by which a copy of a prompt draws, (count,); of more, the first are the same."""
    name = f"sampling.{row}.{copy}" if copy else f"sampling.{row}"
    return torch.rand(count, generator=generator(seed, name))
