"""What ranks share out among them, such as experts: who holds what.

Ranks along a dimension of the mesh that shares something out hold different pieces and read different batches; what
stands beside the pieces is the same on all of them, as under data parallelism. Sums that layers report (`aux`) are of a
rank's own tokens: added up over ranks they are the global batch's, and so are load and what `after_step` sees. A loss
that is no sum over tokens, such as a balance, is that of each rank's own, averaged by their number, as over
micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from bakeoff.interfaces.part import Part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def spread(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leave on each rank its own pieces of a model that stands there whole, values included.

    Raises `ValueError` with both numbers if the ranks do not divide what is to be shared out.
    """
    for part in list(model.modules()):
        if isinstance(part, Part):
            part.spread(mesh)
