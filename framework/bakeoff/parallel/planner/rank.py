"""All layouts of so many devices, the best first."""

from __future__ import annotations

from typing import NamedTuple

from bakeoff.model.devices import Accelerator
from bakeoff.parallel.mesh import Sizes
from bakeoff.parallel.planner.estimate import Estimate, Job, estimate


class Refused(NamedTuple):
    """A layout that cannot be, and why."""

    layout: Sizes
    reason: str


class Ranking(NamedTuple):
    """Layouts that fit, the best first; those that do not, the smallest first; and those that cannot be."""

    fitting: list[Estimate]
    too_large: list[Estimate]
    refused: list[Refused]


def rank(job: Job, candidates: list[Sizes], device: Accelerator, per_node: int) -> Ranking:
    """Each layout with the first mode of recomputation that fits.

    The best has the highest bound on MFU (to a tenth of a percent), then the fewest bytes to send, then the least
    memory. What fits in no mode stands among the too large with the mode that takes least.
    """
    fitting: list[Estimate] = []
    too_large: list[Estimate] = []
    refused: list[Refused] = []
    for layout in candidates:
        try:
            tried = [estimate(job, layout, mode, device, per_node) for mode in job.modes]
        except ValueError as error:
            refused.append(Refused(layout, str(error)))
            continue
        fits = next((one for one in tried if one.memory.total <= device.memory), None)
        if fits is not None:
            fitting.append(fits)
        else:
            too_large.append(min(tried, key=lambda one: one.memory.total))
    fitting.sort(key=lambda one: (-round(one.mfu, 3), one.sent, one.memory.total))
    too_large.sort(key=lambda one: one.memory.total)
    return Ranking(fitting, too_large, refused)
