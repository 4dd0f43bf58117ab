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

#: Tokens, of all rows together, that one call of the prefill takes at most.
PREFILL_TOKENS = 8192


class Rows:
    """Prompts of any lengths, padded on the left; after `prefill`, `choose` and `advance` take turns.

    Each row draws by numbers of its own, a function of (seed, row, step). `lookup` is searched for what is like a chunk
    as soon as a row has completed it. Used under `inference_mode`.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        prompts: list[list[int]],
        new: int,
        seed: int,
        lookup: Lookup | None = None,
    ):
        self.model, self.padding = model, tokenizer.padding
        device, V = model.backbone.embedding.device, model.context.vocab_size
        longest = max(map(len, prompts))
        pads = torch.tensor([longest - len(prompt) for prompt in prompts])
        rows = [[self.padding] * (longest - len(prompt)) + prompt for prompt in prompts]
        self.prompts = torch.tensor(rows, device=device)
        self.padded = int(pads.max())
        self.real = (torch.arange(longest) >= pads[:, None]).to(device)
        self.seen = torch.zeros(len(rows), V, dtype=torch.bool, device=device).scatter_(1, self.prompts, True)
        draws = [torch.rand(new, generator=generator(seed, f"sampling.{row}")) for row in range(len(rows))]
        self.uniform = torch.stack(draws).to(device)
        allowed = torch.arange(V, device=device) < tokenizer.text_size
        allowed[tokenizer.end] = True
        self.never = torch.zeros(V, device=device).masked_fill(~allowed, -torch.inf)
        self.state = model.empty_state(len(rows), longest + new)
        self.looking = Looking(lookup, model, prompts) if lookup is not None and reads_neighbours(model) else None
        self.logits: Tensor

    def prefill(self) -> None:
        """Take in the prompts, chunk by chunk."""
        B, T = self.prompts.shape
        chunk = max(1, PREFILL_TOKENS // B)
        for start in range(0, T, chunk):
            part = slice(start, min(start + chunk, T))
            real = self.real[:, part] if start < self.padded else None
            counts = self.real[:, part].sum(1).tolist() if self.looking else []
            hidden = self._forward(self.prompts[:, part], real, counts)
        self.logits = self._head(hidden)

    def choose(self, sampler: Sampler, step: int) -> Tensor:
        """The next id of each row, (B,)."""
        return sampler.choose(self.logits + self.never, self.seen, self.uniform[:, step])

    def log_probabilities(self, chosen: Tensor) -> Tensor:
        """Of the ids `chosen` (B,), under the model itself."""
        return self.logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0].cpu()

    def advance(self, chosen: Tensor, ended: list[bool]) -> None:
        """Take in one id a row; rows that have ended take padding, until they are dropped."""
        if any(ended):
            chosen = chosen.masked_fill(torch.tensor(ended, device=chosen.device), self.padding)
        if self.looking is not None:
            self.looking.push(chosen.tolist(), ended)
        tokens = chosen[:, None]
        self.seen.scatter_(1, tokens, True)
        self.logits = self._head(self._forward(tokens, None, [1] * len(ended)))

    def keep(self, places: list[int], chosen: Tensor) -> Tensor:
        """Drop all rows but those at `places`; returns what is left of `chosen`."""
        kept = torch.tensor(places, device=chosen.device)
        self.state = select(self.state, kept)
        self.seen, self.uniform = self.seen[kept], self.uniform[kept]
        if self.looking is not None:
            self.looking.keep(places)
        return chosen[kept]

    def _forward(self, tokens: Tensor, real: Tensor | None, counts: list[int]) -> Tensor:
        memory = None if self.looking is None else self.looking.memory(counts, tokens.device)
        sequence = Sequence(tokens, real=real, memory=memory, past=self.state.past)
        result = self.model.backbone(sequence, self.state)
        self.state = result.state
        return result.y

    def _head(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden[:, -1:])[:, 0].float()
