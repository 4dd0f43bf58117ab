"""Models whose every logit is a number of its own, and collections for them, in float64."""

from typing import NamedTuple

import torch
from bakeoff.interfaces import Backbone, Capabilities, LayerContext, Past, Result
from bakeoff.model import LanguageModel
from bakeoff_align.objectives.policy.answers import looked_at
from torch import nn


class Free(nn.Module):
    """The logits (rows, T, V) of each place are parameters; a row says by its first token which it is."""

    class Backbone(nn.Module):
        layers = ()

        def __init__(self, rows, T, features):
            super().__init__()
            self.T = T
            generator = torch.Generator().manual_seed(1)
            self.features = torch.randn(rows * T, features, generator=generator, dtype=torch.float64)
            self.embedding = nn.Parameter(torch.zeros(1, features + 1))

        def forward(self, sequence, state=None):
            place = sequence.tokens[:, :1] * self.T + torch.arange(sequence.length)
            return Result(torch.cat([place[..., None].double(), self.features[place]], -1))

        def layer_losses(self, aux):
            return {}

    class Head(nn.Module):
        def __init__(self, logits):
            super().__init__()
            self.logits = nn.Parameter(logits)

        def forward(self, hidden):
            return self.logits.flatten(0, 1)[hidden[..., 0].long()]

    def __init__(self, logits, features=2):
        super().__init__()
        rows, T, _ = logits.shape
        self.backbone, self.head = self.Backbone(rows, T, features), self.Head(logits)

    @property
    def logits(self):
        return self.head.logits


class Arms(nn.Module):
    """A bandit: one distribution, whatever was before."""

    class Backbone(nn.Module):
        layers = ()

        def __init__(self):
            super().__init__()
            self.embedding = nn.Parameter(torch.zeros(1, 1))

        def forward(self, sequence, state=None):
            return Result(torch.ones(*sequence.tokens.shape, 1, dtype=torch.float64))

        def layer_losses(self, aux):
            return {}

    class Head(nn.Module):
        def __init__(self, probabilities):
            super().__init__()
            self.logits = nn.Parameter(probabilities.log())

        def forward(self, hidden):
            return self.logits.expand(*hidden.shape[:-1], -1)

    def __init__(self, probabilities):
        super().__init__()
        self.backbone, self.head = self.Backbone(), self.Head(probabilities)

    @property
    def policy(self):
        return self.head.logits.detach().softmax(-1)


class Chain(Backbone):
    """What comes next depends on the last token alone; with a state, so that it decodes."""

    capabilities = Capabilities(padding=True, documents=True, state=True)

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.table = nn.Embedding(context.vocab_size, context.d_model)

    embedding = property(lambda self: self.table.weight)
    layers = property(lambda self: nn.ModuleList())

    def empty_state(self, batch, max_length, dtype=None, device=None):
        return ChainState(Past(batch, max_length))

    def forward(self, sequence, state=None):
        after = None if state is None else ChainState(state.past.advance(sequence))
        return Result(self.table(sequence.tokens), after)


class ChainState(NamedTuple):
    past: Past


def chain(table, *, max_length=32):
    """A language model that says `table[a, b]`, a logit, of b after a."""
    V = len(table)
    model = LanguageModel(d_model=V, vocab_size=V, max_length=max_length, backbone=Chain, tied_embedding=False).double()
    with torch.no_grad():
        model.backbone.table.weight.copy_(torch.eye(V))
        model.head.projection.weight.copy_(table.T)
    return model


def collection(lengths, *, prompt=1, padding=0, vocabulary=5, seed=0):
    """Rows of answers of so many tokens behind prompts of `prompt`; the first token is the row's number; all ids could
    be drawn."""
    N, L = len(lengths), prompt + max(lengths) + padding
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (N, L), generator=generator)
    tokens[:, 0] = torch.arange(N)
    at, ends = torch.arange(L), prompt + torch.tensor(lengths)[:, None]
    weights = ((at >= prompt) & (at < ends)).double()
    rows = {"tokens": tokens, "real": at < ends, "weights": weights, "length": weights.sum(1)}
    rows["text_size"] = torch.full((N,), vocabulary)
    return {**rows, "gap": torch.zeros(N).double(), "reward": torch.randn(N, generator=generator).double()}


def noted(objective, model, rows):
    """The same with what the objective looks up, and what it makes of them."""
    with torch.no_grad():
        rows = rows | looked_at(lambda batch: objective.look(model, batch), rows, torch.device("cpu"))
    return rows | objective.credit(rows)
