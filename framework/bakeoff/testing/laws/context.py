"""Law 10: where context parallelism is claimed, ranks that share out the tokens of rows equal one."""

from __future__ import annotations

from pathlib import Path

from bakeoff.interfaces.spans import ORDERS
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import HOSTED_KINDS, SEQUENCE_KINDS, NotClaimed, law
from bakeoff.testing.laws.parallel import on_ranks, runs_in_a_model

_CASES = Path(__file__).parent.with_name("cases_of_context.py")
_CLAIM = "context_parallel"


@law(10, "context", *SEQUENCE_KINDS, *HOSTED_KINDS, claims=(_CLAIM,))
def context(candidate: Candidate) -> None:
    """Two and four ranks that share out the tokens of rows, in either order, equal one process: outputs, sums and
    gradients, also of packed documents and padding."""
    if not candidate.subject.module.capabilities.context_parallel:
        raise NotClaimed(_CLAIM)
    cases = [] if candidate.kind == "backbone" else ["part_equals_one"]
    if not cases or (candidate.subject.reads and runs_in_a_model(candidate)):
        cases.append("model_equals_one")
    on_ranks(candidate, _CASES, cases, (2, 4), orders=list(ORDERS))
