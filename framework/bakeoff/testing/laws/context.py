"""Law 10: where context parallelism is claimed, ranks that share out the tokens of rows equal one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bakeoff.interfaces.spans import ORDERS
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import HOSTED_KINDS, SEQUENCE_KINDS, NotClaimed, law
from bakeoff.testing.laws.parallel import on_ranks, runs_in_a_model

_CASES = Path(__file__).parent.with_name("cases_of_context.py")
_CLAIM = "context_parallel"


@law(10, "context", *SEQUENCE_KINDS, *HOSTED_KINDS, claims=(_CLAIM,))
def context(candidate: Candidate) -> None:
    """Ranks that share out the tokens of rows equal one process: outputs, sums and gradients, also of packed documents
    and padding; two ranks in either order and four with the first arguments of a class, two with others."""
    if not candidate.subject.module.capabilities.context_parallel:
        raise NotClaimed(_CLAIM)
    first = _first(candidate)
    if candidate.kind != "backbone":
        on_ranks(candidate, _CASES, ["part_equals_one"], [2], orders=list(ORDERS) if first else ["zigzag"])
        if candidate.kind in SEQUENCE_KINDS and first:
            on_ranks(candidate, _CASES, ["part_equals_one"], [4], orders=["zigzag"])
    if candidate.kind == "backbone" or (candidate.subject.reads and runs_in_a_model(candidate)):
        on_ranks(candidate, _CASES, ["model_equals_one"], [2], orders=list(ORDERS))


def _first(candidate: Candidate) -> bool:
    """Whether these are the first of the arguments that the class names: with others, two ranks tell as much."""
    examples: list[Any] = getattr(candidate.make, "examples", list)()
    return not examples or candidate.arguments == examples[0]
