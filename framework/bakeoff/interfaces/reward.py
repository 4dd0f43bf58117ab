"""Kind `reward`: how good an answer is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Items
from typing import NamedTuple

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.component import Component
from bakeoff.interfaces.dialogue import Dialogue


class Sample(NamedTuple):
    """An answer to be judged.

    `prompt`, `tokens` : ids of the prompt, and of the answer, the end id among them if it was drawn. `text` : the
    answer's text. `reason` : why it ended: "end", "stop" or "length".
    """

    dialogue: Dialogue
    text: str
    prompt: list[int]
    tokens: list[int]
    reason: str = "end"


class Reward(Component):
    """Judges answers, each by itself: neither the other samples of a call nor earlier calls change what one gets."""

    kind = "reward"

    @abstractmethod
    def score(self, samples: Items[Sample]) -> list[float]:
        """A finite number for each sample, more for better ones."""

    def score_steps(self, samples: Items[Sample]) -> list[list[float]]:
        """A number for each step of each sample. Refused by rewards that judge whole answers only."""
        raise CapabilityError(
            f"{type(self).__name__} judges whole answers and no steps: use a reward that does, such as "
            "{use: process_reward}"
        )
