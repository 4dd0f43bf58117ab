"""Law 10: where tensor or context parallelism is claimed, several ranks equal one."""

from __future__ import annotations

from bakeoff.testing.law import NotApplicable, NotClaimed, sequence_law
from bakeoff.testing.subject import Subject


@sequence_law(10, "parallel", hosted=False)
def parallel(subject: Subject) -> None:
    """No part claims it yet."""
    if not (subject.claims.tensor_parallel or subject.claims.context_parallel):
        raise NotClaimed("tensor_parallel, context_parallel")
    raise NotApplicable("this release builds no mesh")
