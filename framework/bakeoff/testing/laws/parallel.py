"""Law 10: where tensor or context parallelism is claimed, several ranks equal one."""

from __future__ import annotations

from bakeoff.testing.law import NotApplicable, sequence_law
from bakeoff.testing.subject import Subject


@sequence_law(10, "parallel", hosted=False, claims=("tensor_parallel", "context_parallel"))
def parallel(subject: Subject) -> None:
    """Several ranks equal one, forward and gradients. (This release builds no mesh, and no part claims it.)"""
    raise NotApplicable("this release builds no mesh")
