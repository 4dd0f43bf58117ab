"""Beam search over the steps of an answer, for many questions at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bakeoff.interfaces.reward import Reward, Sample
from bakeoff.interfaces.sampler import Sampler
from bakeoff.parts.judging import scores

from bakeoff_align.inference.questions import Questions


@dataclass(frozen=True)
class Steps:
    """How answers are cut into steps, and how far they go: `count` steps at most, of at most `tokens` tokens each."""

    stop: str
    count: int
    tokens: int
    sampler: Sampler


class Beam(NamedTuple):
    """An answer so far, which is one that was cut off while it can go on, and what the reward thinks of it."""

    sample: Sample
    goes_on: bool
    score: float = 0.0


@dataclass
class Search:
    """Where the search for one answer stands.

    Attributes
    ----------
    beams : answers so far that are kept, the best first. new : what has come out of them and is not judged yet.
    drawn, read : tokens that the model drew, and that it read to draw them.
    """

    beams: list[Beam]
    new: list[Beam] = field(default_factory=list)
    drawn: int = 0
    read: int = 0

    def going(self) -> list[Sample]:
        """Answers that can go on."""
        return [beam.sample for beam in self.beams if beam.goes_on]

    def keep(self, new: list[Beam], width: int) -> None:
        """Keep the `width` best of what is new and what had ended, of equals the earlier."""
        ended = [beam for beam in self.beams if not beam.goes_on]
        self.beams = sorted([*ended, *new], key=lambda beam: -beam.score)[:width]
        self.new = []


def search(
    questions: Questions,
    reward: Reward,
    *,
    width: int,
    branches: int,
    steps: Steps,
    told: Callable[[int], None] = lambda done: None,
) -> list[Search]:
    """The `width` best answers to each question.

    In each round every kept answer that has not ended goes on by one step in `branches` ways; in the first, the prompt
    in `width` times as many. The `width` that the reward scores highest are kept, those that have ended among them. It
    is over when all that is kept has ended, or after `steps.count` rounds. `told` is called with the number of rounds
    behind it.
    """
    pairs = zip(questions.dialogues, questions.prompts, strict=True)
    found = [Search([Beam(Sample(dialogue, "", prompt, [], "length"), goes_on=True)]) for dialogue, prompt in pairs]
    for number in range(steps.count):
        going = [(each, sample) for each in found for sample in each.going()]
        if not going:
            break
        copies = branches if number else width * branches
        _grow(questions, going, copies, f"{width} {number}", steps)
        _judge(reward, found, width)
        told(number + 1)
    return found


def _grow(questions: Questions, going: list[tuple[Search, Sample]], copies: int, purpose: str, steps: Steps) -> None:
    """Continue each answer by one step in `copies` ways, which become new ones of its search."""
    limit = questions.measured.model.context.max_length
    tokenizer = questions.measured.data.tokenizer
    rows = [[*sample.prompt, *sample.tokens] for _, sample in going]
    continued = questions.continued(
        rows, copies=copies, sampler=steps.sampler, most=steps.tokens, purpose=purpose, stop=(steps.stop,)
    )
    said = dict(continued)
    for place, (owner, sample) in enumerate(going):
        owner.read += len(rows[place])
        for each in said[place]:
            owner.drawn += len(each.tokens)
            tokens = [*sample.tokens, *each.tokens]
            ended = each.reason == "end"
            longer = sample._replace(text=tokenizer.decode(tokens), tokens=tokens, reason="end" if ended else "length")
            owner.new.append(Beam(longer, goes_on=not ended and len(sample.prompt) + len(tokens) < limit))


def _judge(reward: Reward, found: list[Search], width: int) -> None:
    """Score what is new, equal answers of a search once, and keep the best."""
    new = [list({tuple(beam.sample.tokens): beam for beam in each.new}.values()) for each in found]
    scored = iter(scores(reward, [beam.sample for own in new for beam in own]))
    for each, own in zip(found, new, strict=True):
        each.keep([beam._replace(score=next(scored)) for beam in own], width)
