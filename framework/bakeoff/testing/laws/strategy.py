"""Strategies: what they say of the number of processes, and what they refuse."""

from __future__ import annotations

from bakeoff.errors import UserError
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, NotApplicable, law

#: (devices, nodes) that are tried.
_MACHINES = tuple((devices, nodes) for devices in (1, 2, 3, 4, 8) for nodes in (1, 2))


@law(None, "processes", "strategy")
def processes(candidate: Candidate) -> None:
    """A number of processes that it takes has batch ranks that divide it, alike when asked again, and a strategy of
    Lightning; another is refused in one message."""
    from lightning.pytorch.strategies import Strategy as LightningStrategy

    strategy, taken = candidate.build(), 0
    for devices, nodes in _MACHINES:
        where = f"{nodes} x {devices} processes"
        try:
            made = strategy.lightning(devices=devices, nodes=nodes)
        except UserError:
            continue
        taken += 1
        if not isinstance(made, LightningStrategy):
            raise Broken(f"lightning() of {where} is a {type(made).__name__}, which is no strategy of Lightning")
        ranks = strategy.batch_ranks(devices=devices, nodes=nodes)
        if not 1 <= ranks <= devices * nodes or (devices * nodes) % ranks:
            raise Broken(f"batch_ranks of {where} is {ranks}, which does not divide them")
        if ranks != strategy.batch_ranks(devices=devices, nodes=nodes):
            raise Broken(f"batch_ranks of {where} differs when it is asked again")
    if not taken:
        raise NotApplicable("takes none of the machines that are tried")
