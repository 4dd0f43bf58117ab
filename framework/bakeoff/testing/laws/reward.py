"""Rewards: a finite number for each answer, whatever stands beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.dialogue import ASSISTANT, Dialogue, Turn
from bakeoff.interfaces.reward import Reward, Sample
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, NotClaimed, law

#: Answers to one question, in the forms that models give them.
_ANSWERS = [
    "42",
    "",
    "<scratch>\n4 + 38, 2 C: 1\n</scratch>\n42",
    "It is 6 times 7.\nThat makes 42.\n#### 42",
    "<think>no idea</think><answer>41</answer>",
    "naïve 🤗",
    "42",
    "minus $1,042.50, or 5%",
]
#: By how much a number may differ from another computation of the same, relative to 1 and to itself.
_NEAR = 1e-5


@law(None, "score", "reward")
def score(candidate: Candidate) -> None:
    """A finite number for each answer, in order; the same alone, among others, again, and from another object."""
    reward, again = candidate.build(), candidate.build()
    samples = _samples()
    _empty(reward.score([]), "score")
    together = _numbers(reward, samples)
    _same(_numbers(reward, samples), together, "asked again, an answer")
    _same(_numbers(again, samples), together, "by another object with the same arguments, an answer")
    _same(_numbers(reward, samples[::-1])[::-1], together, "in the other order, an answer")
    _same([number for one in samples for number in _numbers(again, [one])], together, "alone, an answer")
    _same(_numbers(reward, samples[:3] * 2), together[:3] * 2, "given twice, an answer")


@law(None, "steps", "reward")
def steps(candidate: Candidate) -> None:
    """Who scores steps: finite numbers, the same alone and among others; none for no answers."""
    reward, samples = candidate.build(), _samples()
    try:
        together = reward.score_steps(samples)
    except CapabilityError:
        raise NotClaimed("score_steps") from None
    _empty(reward.score_steps([]), "score_steps")
    if len(together) != len(samples):
        raise Broken(f"score_steps gives {len(together)} lists for {len(samples)} answers")
    for sample, told in zip(samples, together, strict=True):
        (alone,) = reward.score_steps([sample])
        if len(alone) != len(told):
            raise Broken(f"{_shown(sample)} has {len(alone)} steps alone, and {len(told)} among others")
        _finite(told, [sample] * len(told))
        _same(alone, told, f"alone, a step of {_shown(sample)}")


def _samples() -> list[Sample]:
    """The answers, with ids of nothing in particular; the third one was cut off."""
    known = {"completion": _ANSWERS[2], "right": 1.0, "answer": "42"}
    dialogue = Dialogue(prompt=(Turn("user", "What is 6 times 7?"),), **known)  # type: ignore[arg-type]
    other = Dialogue(prompt=(Turn("user", "2?"), Turn(ASSISTANT, "2"), Turn("user", "naïve?")), answer="5%")
    reasons = ["end", "stop", "length"]
    return [
        Sample(other if number % 4 == 3 else dialogue, text, [1, 2, 3], [*range(len(text))], reasons[number % 3])
        for number, text in enumerate(_ANSWERS)
    ]


def _numbers(reward: Reward, samples: Items[Sample]) -> list[float]:
    found = reward.score(samples)
    if len(found) != len(samples):
        raise Broken(f"score gives {len(found)} numbers for {len(samples)} answers")
    _finite(found, samples)
    return list(found)


def _finite(found: Items[float], samples: Items[Sample]) -> None:
    for number, sample in zip(found, samples, strict=True):
        if not isinstance(number, float | int) or not math.isfinite(number):
            raise Broken(f"{_shown(sample)} gets {number!r}, which is no finite number")


def _same(found: Items[float], wanted: Items[float], what: str) -> None:
    for one, other in zip(found, wanted, strict=True):
        if not math.isclose(one, other, rel_tol=_NEAR, abs_tol=_NEAR):
            raise Broken(f"{what} gets {one:.6g}, not {other:.6g}")


def _empty(found: object, name: str) -> None:
    if found != []:
        raise Broken(f"{name} of no answers gives {found!r}, not []")


def _shown(sample: Sample) -> str:
    return f"the answer {sample.text[:40]!r}"
