"""The smallest model: tokens come by fixed probabilities, whatever was before; and rows for it."""

import torch
from bakeoff.interfaces import Result
from torch import nn


class Unigram(nn.Module):
    """Id i has log-probability `table[i]`; the last id has what is left."""

    class Backbone(nn.Module):
        layers = ()

        def forward(self, sequence, state=None):
            return Result(sequence.tokens[..., None].double())

        def layer_losses(self, aux):
            return {}

    class Head(nn.Module):
        def __init__(self, table):
            super().__init__()
            table = torch.tensor(table, dtype=torch.float64)
            rest = torch.log1p(-table.exp().sum())
            self.logits = nn.Parameter(torch.cat([table, rest[None]]))

        def forward(self, hidden):
            return self.logits.expand(*hidden.shape[:-1], -1)

    def __init__(self, *table):
        super().__init__()
        self.backbone, self.head = self.Backbone(), self.Head(table)


def rows(*completions, prompts=2, padding=0):
    """Batch of `(id, how often)` completions behind prompts of id 0, of `prompts` tokens or of so many each."""
    prompts = [prompts] * len(completions) if isinstance(prompts, int) else prompts
    made = [[0] * n + [token] * count for n, (token, count) in zip(prompts, completions, strict=True)]
    L = max(map(len, made)) + padding
    ends = torch.tensor([[len(row)] for row in made])
    starts, at = torch.tensor(prompts)[:, None], torch.arange(L)
    return {
        "tokens": torch.tensor([row + [0] * (L - len(row)) for row in made]),
        "weights": ((at >= starts) & (at < ends)).float(),
        "real": at < ends,
        "documents": None,
    }
