"""Faults planted in objectives that read dialogues, and in those that collect."""

from __future__ import annotations

import pytest
import torch
from bakeoff.interfaces import Encoded, PolicyObjective, Row, TokenLosses
from bakeoff.parts.causal import Causal, shifted
from bakeoff.testing import check


class Sound(Causal):
    """Fine-tuning: what the assistant says is learnt."""

    reads_dialogues = True
    carries_state = False

    def encode(self, dialogue, template, tokenizer):
        return Encoded([template.row(dialogue.prompt, dialogue.completion, tokenizer)])


class LearnsPrompts(Sound):
    def encode(self, dialogue, template, tokenizer):
        (row,) = super().encode(dialogue, template, tokenizer).rows
        return Encoded([Row(row.tokens, [1.0] * len(row.tokens))])


class CountsPadding(Sound):
    def forward(self, model, batch):
        terms, statistics = super().forward(model, batch)
        total, _ = terms["loss"]
        return {"loss": (total, total.new_tensor(float(batch["tokens"].numel())))}, statistics


class CountsEmptyRows(Sound):
    def forward(self, model, batch):
        terms, statistics = super().forward(model, batch)
        return terms, {**statistics, "mean.rows": torch.ones(2) * len(batch["tokens"])}


class LearnsNothing(Sound):
    def forward(self, model, batch):
        terms, statistics = super().forward(model, batch)
        return {name: (total * 0, weight) for name, (total, weight) in terms.items()}, statistics


class Averages(Sound):
    def forward(self, model, batch):
        terms, statistics = super().forward(model, batch)
        return {name: (total / weight, weight / weight) for name, (total, weight) in terms.items()}, statistics


class SaysThatItAverages(Averages):
    additive = False


class PacksCarelessly(Sound):
    """Lets dialogues of a row see each other."""

    packs = True

    def forward(self, model, batch):
        return super().forward(model, {**batch, "documents": None})

    def token_losses(self, model, batch):
        return super().token_losses(model, {**batch, "documents": None})


class TwoRows(Sound):
    """Each dialogue twice; a value of it, and its rows, stay together."""

    rows_each = 2

    def encode(self, dialogue, template, tokenizer):
        (row,) = super().encode(dialogue, template, tokenizer).rows
        return Encoded([row, row], {"right": dialogue.right})

    def planned(self, rows, length):
        return {"right": torch.ones(rows // 2)}

    def forward(self, model, batch):
        terms, statistics = super().forward(model, batch)
        there = (batch["weights"][::2] > 0).any(1).float()
        return terms, {**statistics, "mean.right": torch.stack([(batch["right"] * there).sum(), there.sum()])}


class Repeats(PolicyObjective):
    """Collects the completions of the dialogues, whatever the model says, and learns them."""

    def __init__(self):
        super().__init__()
        self.group, self.inner = 1, Sound()

    def tokens_wanted(self, length):
        return length + 1

    def collect(self, model, prompts, collecting):
        told = [self.inner.encode(p, collecting.template, collecting.tokenizer).rows[0] for p in prompts]
        tokens, weights = torch.zeros(len(told), collecting.length + 1).long(), torch.zeros(3, collecting.length + 1)
        for i, row in enumerate(told):
            tokens[i, : len(row.tokens)], weights[i, : len(row.tokens)] = map(torch.tensor, row[:2])
        ends = torch.tensor([[len(row.tokens)] for row in told])
        return {"tokens": tokens, "weights": weights, "real": torch.arange(tokens.shape[1]) < ends}

    def credit(self, rows):
        return {"factor": torch.full((3,), 2.0)}

    def planned(self, rows, length):
        return {"factor": torch.ones(rows)}

    def forward(self, model, batch):
        terms, statistics = self.inner(model, batch)
        return {name: (total * batch["factor"].max(), weight) for name, (total, weight) in terms.items()}, statistics

    def token_losses(self, model, batch):
        return self.inner.token_losses(model, batch)


class PlansAValueARow(TwoRows):
    def planned(self, rows, length):
        return {"right": torch.ones(rows)}


class RepeatsPrompts(Repeats):
    def credit(self, rows):
        return {**super().credit(rows), "weights": rows["real"].float()}


class CostsOtherwise(Sound):
    def token_losses(self, model, batch):
        given = shifted(batch)
        return TokenLosses(torch.ones_like(given.weights), given.targets, given.weights)


@pytest.mark.parametrize("sound", [Sound, TwoRows, Repeats])
def test_sound_ones_keep_the_laws(sound: type) -> None:
    check(sound).raise_for_failures()


@pytest.mark.parametrize(
    ("component", "law", "message"),
    [
        (LearnsPrompts, "prompts", "a dialogue a row: the loss has a gradient in what is made of token 0 of row 0"),
        (LearnsNothing, "prompts", "the loss has no gradient in what is made of the answers"),
        (RepeatsPrompts, "prompts", "what was collected: the loss has a gradient in what is made of token 0 of row 0"),
        (CountsPadding, "padding", "a dialogue a row, 5 more tokens of padding: term 'loss' is"),
        (CountsEmptyRows, "padding", "rows of nothing but padding: statistic 'mean.rows' is [4.0, 4.0] and not [3.0"),
        (PacksCarelessly, "packing", "term 'loss' is"),
        (PlansAValueARow, "plan", "'right' is (3,) in a batch, and planned as (6,)"),
        (Averages, "terms", "a dialogue a row: term 'loss' is"),
        (CostsOtherwise, "terms", "a dialogue a row: token_losses add up to"),
    ],
)
def test_planted_faults_are_caught(component: type, law: str, message: str) -> None:
    report = check(component, laws=[law])
    assert any(message in finding.reason for finding in report.failures), str(report)


def test_who_says_that_its_terms_do_not_add_up_is_not_asked_to() -> None:
    check(SaysThatItAverages, laws=["terms"]).raise_for_failures()
