"""Dialogues: what a corpus yields where a model is to answer, and not only to go on with a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: The role that the model plays.
ASSISTANT = "assistant"


class Turn(NamedTuple):
    """What one side of a conversation says."""

    role: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """One thing to be answered, with what is known of its answers. Plain values only: it is kept as JSON.

    Attributes
    ----------
    prompt : the turns before the answer, earlier answers among them.
    completion : an answer. rejected : another one, which was judged worse.
    margin : by how much, where that is known.
    right : how right the completion is, from 0 to 1, or how desirable; None: nobody has said.
    steps : the completion cut into steps, which joined give it; step_labels : how right each is, from 0 to 1.
    answer : the right final answer, for rewards that compare.
    details : what a scorer of its own needs.
    """

    prompt: tuple[Turn, ...]
    completion: str | None = None
    rejected: str | None = None
    margin: float = 0.0
    right: float | None = None
    steps: tuple[str, ...] = ()
    step_labels: tuple[float, ...] = ()
    answer: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Row(NamedTuple):
    """One sequence that a dialogue becomes.

    `weights` : how much each token counts as a target, 0 where it is only read; as many as there are tokens.
    `labels` : what is known of the text up to each token, NaN where nothing is; None: nothing anywhere.
    """

    tokens: list[int]
    weights: list[float]
    labels: list[float] | None = None


class Encoded(NamedTuple):
    """A dialogue as an objective reads it: its rows, and numbers of it by name."""

    rows: list[Row]
    values: Mapping[str, float] = {}
