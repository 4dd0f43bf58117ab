"""What objectives share that let the model answer, and have the answers judged."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces.dialogue import Dialogue, Encoded, Row
from bakeoff.interfaces.objective import Model, Statistics, TokenLosses
from bakeoff.interfaces.policy import Collecting, PolicyObjective
from bakeoff.interfaces.reward import Reward
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.judging import scores
from bakeoff.parts.modes import evaluating
from torch import Tensor

from bakeoff_align.log_probabilities import Told, lengths, mean, summed, told
from bakeoff_align.objectives.policy.answers import Rows, drawn, looked_at


class Answering(PolicyObjective):
    """Draws answers, has them judged, and looks at them once more as they will be trained on.

    A collection holds, beside the rows, `reward` (N,), `length` (N,), the tokens of an answer, `text_size` (N,), of the
    tokenizer, `old` (N, L), the log-probability of each drawn token, among those that could be drawn, by a full forward
    pass in evaluation mode, and `gap` (N,), the sum of how far those are from what they were in sampling. What is
    (N, L) stands at the token that it is said of, and is 0 where none was drawn.

    Parameters
    ----------
    reward : judges whole answers. group : answers to each prompt. max_new_tokens : of an answer; one that has not ended
        by then is judged as it stands.
    passes : how often a collection is gone through. updates : into how many optimizer steps a pass is cut.
    """

    fewest: int = 1
    """Answers to a prompt that it takes at least."""
    by_token: tuple[str, ...] = ("old",)
    """What (N, L) a collection holds beside the rows; `by_answer` : what (N,)."""
    by_answer: tuple[str, ...] = ("reward", "length", "gap", "text_size")

    def __init__(self, *, reward: Reward, max_new_tokens: int, group: int, passes: int, updates: int):
        super().__init__()
        least = {"max_new_tokens": 1, "group": self.fewest, "passes": 1, "updates": 1}
        given = {"max_new_tokens": max_new_tokens, "group": group, "passes": passes, "updates": updates}
        for name, value in given.items():
            if value < least[name]:
                raise UserError(f"{name} is {value}; {type(self).__name__} takes at least {least[name]}")
        self.reward, self.max_new_tokens = reward, max_new_tokens
        self.group, self.passes, self.updates = group, passes, updates

    def tokens_wanted(self, length: int) -> int:
        """One more than there are inputs."""
        return length + 1

    def encode(self, dialogue: Dialogue, template: Template, tokenizer: Tokenizer) -> Encoded:
        """The prompt; and the completion, where there is one, whose tokens are the targets of `token_losses`."""
        if dialogue.completion is not None:
            return Encoded([template.row(dialogue.prompt, dialogue.completion, tokenizer)])
        read = template.prompt(dialogue.prompt, tokenizer) or [tokenizer.end]
        return Encoded([Row(read, [0.0] * len(read))])

    def collect(self, model: Any, prompts: Items[Dialogue], collecting: Collecting) -> Rows:
        """Answers, what the reward thinks of them, and what a training step needs to know."""
        samples, rows = drawn(model, prompts, collecting, group=self.group, max_new_tokens=self.max_new_tokens)
        judged = scores(self.reward, samples)
        with evaluating(model), torch.no_grad():
            rows |= looked_at(lambda batch: self.look(model, batch), rows, model.backbone.embedding.device)
        sampled = rows.pop("sampled").to(rows["old"])
        rows["gap"] = summed((rows["old"] - sampled).abs(), rows["weights"])
        rows["reward"] = torch.tensor(judged, dtype=torch.float64).to(rows["old"])
        rows["length"] = rows["weights"].sum(1)
        return rows

    def look(self, model: Model, batch: Mapping[str, Tensor | None]) -> Rows:
        """(B, T) each, of the targets of a batch, before training on them: `old`."""
        return {"old": told(model, batch).log_probabilities}

    def forwards(self) -> float:
        """Answers are drawn, and looked at once more, for each pass over a collection."""
        return 2.0 / self.passes

    def planned(self, rows: int, length: int) -> dict[str, Tensor]:
        """What a collection holds."""
        wide = {name: torch.zeros(rows, self.tokens_wanted(length)) for name in self.by_token}
        return wide | {name: torch.ones(rows) for name in self.by_answer}

    def token_losses(self, model: Model, batch: Mapping[str, Tensor | None]) -> TokenLosses:
        """Nats of the targets; there are none where a dialogue has no completion."""
        said = told(model, batch)
        return TokenLosses(-said.log_probabilities, said.shifted.targets, said.shifted.weights)


def at_targets(rows: Rows, name: str) -> Tensor:
    """(B, L) of a collection -> (B, T): at what is predicted."""
    return rows[name][:, 1:]


def present(batch: Mapping[str, Tensor | None]) -> Rows:
    """What a batch holds."""
    return {name: value for name, value in batch.items() if value is not None}


def of_answers(said: Told, rows: Rows) -> Statistics:
    """What all these objectives tell of a batch."""
    weights = said.shifted.weights
    answers, tokens = (rows["length"] > 0).sum(), rows["length"].sum()
    return {
        "nats": -(said.log_probabilities * weights).sum().detach(),
        "tokens": weights.sum(),
        "mean.reward": mean(rows["reward"].sum(), answers),
        "mean.length": mean(tokens, answers),
        "mean.entropy": mean(said.entropy.sum(), lengths(weights).sum()),
        "mean.sampling_gap": mean(rows["gap"].sum(), tokens),
    }
