"""Linear attention: mixers whose state is a matrix that keys write and queries read."""

from bakeoff_linear.delta_net import DeltaNet
from bakeoff_linear.gated_delta_net import GatedDeltaNet
from bakeoff_linear.kda import KDA

BAKEOFF_API = 1

__all__ = ["KDA", "DeltaNet", "GatedDeltaNet"]
