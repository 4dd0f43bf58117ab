"""Objective `sft`: supervised fine-tuning."""

from __future__ import annotations

from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces.dialogue import ASSISTANT, Dialogue, Encoded, Row, Turn
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.causal import Causal

TRAIN_ON = ("all", "last")


class SupervisedFineTuning(Causal):
    """What the assistant says is predicted token by token, its end included; all else is only read.

    Each target counts 1, whichever turn, dialogue or row it stands in: the loss is that of `causal` over the targets.
    Dialogues share rows, and do not see each other.

    Parameters
    ----------
    train_on : "all", what the assistant says anywhere in a dialogue, or "last", its completion alone.
    z_loss, label_smoothing : as in `causal`.
    """

    reads_dialogues = True
    packs = True
    carries_state = False

    def __init__(self, *, train_on: str = "all", z_loss: float = 0.0, label_smoothing: float = 0.0):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        if train_on not in TRAIN_ON:
            raise UserError(f"objective 'sft': train_on is '{train_on}'; it is one of {', '.join(TRAIN_ON)}")
        self.train_on = train_on

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with every option."""
        return [{}, {"train_on": "last", "z_loss": 1e-3, "label_smoothing": 0.1}]

    def encode(self, dialogue: Dialogue, template: Template, tokenizer: Tokenizer) -> Encoded:
        """One row; `UserError` where there is no completion."""
        if dialogue.completion is None:
            raise UserError("it has no completion, so that there is nothing to learn from; give it one or leave it out")
        last = template.row(dialogue.prompt, dialogue.completion, tokenizer)
        if self.train_on == "last":
            return Encoded([last])
        told = [weight for turn in dialogue.prompt for weight in _weights(turn, template, tokenizer)]
        return Encoded([Row(last.tokens, told + last.weights[len(told) :])])


def _weights(turn: Turn, template: Template, tokenizer: Tokenizer) -> list[float]:
    """1 for each token that the assistant speaks, 0 for what others speak, and for what opens a turn."""
    read = [0.0] * len(template.opening(turn.role, tokenizer))
    return read + [float(turn.role == ASSISTANT)] * len(template.spoken(turn, tokenizer))
