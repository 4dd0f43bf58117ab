"""Objectives of kind `objective` that learn from what the model itself says."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.dialogue import Dialogue
from bakeoff.interfaces.objective import Objective
from bakeoff.interfaces.sampler import Sampler
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer


@dataclass(frozen=True)
class Collecting:
    """With what answers are collected.

    Attributes
    ----------
    length : inputs that the model reads in a row: prompt and answer have at most one token more.
    seed : of the draws. first : number of the first prompt among those of all ranks; prompt i of the call draws by
        (seed, first + i), so that draws do not hang on how many ranks share the prompts out.
    """

    tokenizer: Tokenizer
    template: Template
    sampler: Sampler
    length: int
    seed: int
    first: int = 0


class PolicyObjective(Objective):
    """Every `passes` x `updates` optimizer steps answers are collected from the model as it stands, and judged.

    A collection holds `group` answers to each of its prompts, `updates` steps of rows in all, which are gone through
    `passes` times, each time in another order: what `collect` gives, and `credit` makes of it. It belongs to the
    checkpoint. `forward` is given rows of it.

    Answers are drawn among the ids of `bakeoff.parts.drawable` alone, and `bakeoff.complete` gives log-probabilities
    among these: where a ratio or a KL of policies is taken, the other side of it must be too.
    """

    reads_dialogues = True
    collects: ClassVar[bool] = True
    group: int
    """Answers to a prompt; they stand next to each other."""
    max_new_tokens: int
    """Tokens that an answer has at most; each prompt leaves room for so many."""
    passes: int = 1
    """How often a collection is gone through."""
    updates: int = 1
    """Into how many optimizer steps one pass is cut."""
    any_sampler: ClassVar[bool] = False
    """Learns from answers however they were drawn; else only from the model's own distribution."""

    def prompts(self, rows: int) -> int:
        """How many a collection has, where an optimizer step has `rows` rows; `UserError` if groups do not fill it."""
        held = rows * self.updates
        if held % self.group:
            raise UserError(
                f"a collection has {held} rows ({rows} of an optimizer step, data.batch_tokens / data.length, x "
                f"objective.updates {self.updates}), which are no multiple of objective.group {self.group}: change one "
                "of them"
            )
        return held // self.group

    def check_sampler(self, sampler: Sampler) -> None:
        """`UserError` for a sampler that draws answers from which this cannot learn."""
        if not (self.any_sampler or sampler.faithful):
            raise UserError(
                f"{type(self).__name__} learns from answers as the model itself gives them, but the sampler "
                f"{type(sampler).__name__} draws from another distribution: write sampler: {{use: sample}} "
                "with no arguments, or take an objective that learns from any answers, such as expert_iteration"
            )

    @abstractmethod
    def collect(self, model: Any, prompts: Items[Dialogue], collecting: Collecting) -> dict[str, Tensor]:
        """Rows, `group` for each prompt, on the CPU: `tokens` (N, L) long, `real` (N, L) bool, `weights` (N, L), with
        L = `tokens_wanted(collecting.length)`, padded on the right, and more tensors of N rows. What is (N, L) is cut
        with the tokens. `UserError` where a reward gives no finite number."""

    def credit(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is learnt from a whole collection, once it is there: more tensors of its rows, or others in their place.

        Called once a collection, on every rank with the rows of all of them.
        """
        return {}
