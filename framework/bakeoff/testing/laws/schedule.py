"""Schedules: pure functions of the step, finite, never negative, starting above zero."""

from __future__ import annotations

import math

from bakeoff.errors import UserError
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, NotApplicable, law

_TOTALS = (1, 2, 10, 1000)


@law(None, "factor", "schedule")
def factor(candidate: Candidate) -> None:
    """Finite, 0 or more at every step, above 0 at the first; the same when asked again; a warm-up never falls."""
    schedule, accepted = candidate.build(), 0
    for total in _TOTALS:
        try:
            factors = [schedule.factor(step, total) for step in range(total)]
        except UserError:  # too short a run for these arguments
            continue
        accepted += 1
        for step, value in enumerate(factors):
            if not (math.isfinite(value) and value >= 0):
                raise Broken(f"factor({step}, {total}) is {value}; it must be finite and 0 or more")
        if factors[0] == 0:
            raise Broken(f"factor(0, {total}) is 0: the first step moves nothing")
        if factors[::-1] != [schedule.factor(step, total) for step in reversed(range(total))]:
            raise Broken(f"of {total} steps, asked in reverse: a factor differs, so it depends on earlier calls")
        for step in range(_warmup(schedule, total) - 1):
            if factors[step + 1] < factors[step]:
                raise Broken(f"factor({step + 1}, {total}) is below factor({step}, {total}) in the warm-up")
    if not accepted:
        raise NotApplicable(f"refuses runs of {', '.join(map(str, _TOTALS))} steps")


def _warmup(schedule: object, total: int) -> int:
    amount = getattr(schedule, "warmup", 0)
    return round(amount * total) if amount < 1 else int(amount)
