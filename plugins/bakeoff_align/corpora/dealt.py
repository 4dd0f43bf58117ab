"""How dialogues are dealt out to training and validation."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property

from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import Corpus
from bakeoff.interfaces.dialogue import Dialogue
from bakeoff.parts.corpora.splitting import HashSplit, document_hash, known_share, known_split, split_by_hash


class DealtDialogues(Corpus):
    """About the share `validation` of the prompts is held out, chosen by a hash of prompt and `seed`.

    Dialogues with equal prompts stand on one side; of those that have none, those with equal completions. However few
    there are, each side gets one. Their texts, for what is trained on text, are prompt and completion, turn after turn
    on lines of their own.
    """

    def __init__(self, validation: float, seed: int):
        self.validation, self.seed = known_share(validation), seed

    @abstractmethod
    def all(self) -> Iterator[Dialogue]:
        """The dialogues of both splits, always in the same order."""

    def dialogues(self, split: str) -> Iterator[Dialogue]:
        known_split(split)
        dealt = self._split
        return (dialogue for dialogue in self.all() if dealt.has(split, _key(dialogue)))

    def documents(self, split: str) -> Iterator[str]:
        return (text_of(dialogue) for dialogue in self.dialogues(split))

    @cached_property
    def _split(self) -> HashSplit:
        hashes = (document_hash(_key(dialogue), self.seed) for dialogue in self.all())
        found = split_by_hash(hashes, self.validation, self.seed)
        if found is None:
            raise UserError(
                f"validation is {self.validation}, but all dialogues have the same prompt, and equal prompts stand on "
                "one side: set validation: 0, or give the corpus other prompts as well"
            )
        return found


def text_of(dialogue: Dialogue) -> str:
    """Prompt and completion, turn after turn on lines of their own."""
    said = [turn.text for turn in dialogue.prompt]
    return "\n".join(said if dialogue.completion is None else [*said, dialogue.completion])


def _key(dialogue: Dialogue) -> str:
    return json.dumps(dialogue.prompt or dialogue.completion)
