"""Linear attention: mixers whose state is a matrix that keys write and queries read."""

from bakeoff_linear.gated_delta_net import GatedDeltaNet

BAKEOFF_API = 1

__all__ = ["GatedDeltaNet"]
