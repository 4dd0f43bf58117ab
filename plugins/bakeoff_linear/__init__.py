"""Linear attention: mixers whose state is a matrix that keys write and queries read."""

from bakeoff_linear.delta_net import DeltaNet
from bakeoff_linear.gated_convolution import GatedConvolution
from bakeoff_linear.gated_delta_net import GatedDeltaNet
from bakeoff_linear.gla import GLA
from bakeoff_linear.kda import KDA
from bakeoff_linear.linear_attention import LinearAttention
from bakeoff_linear.retention import Retention

BAKEOFF_API = 1

__all__ = ["GLA", "KDA", "DeltaNet", "GatedConvolution", "GatedDeltaNet", "LinearAttention", "Retention"]
