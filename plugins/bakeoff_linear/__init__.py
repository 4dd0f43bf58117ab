"""Linear attention: mixers whose state is a matrix that keys write and queries read."""

from bakeoff_linear.delta_net import DeltaNet
from bakeoff_linear.gated_convolution import GatedConvolution
from bakeoff_linear.gated_delta_net import GatedDeltaNet
from bakeoff_linear.gla import GLA
from bakeoff_linear.kda import KDA
from bakeoff_linear.linear_attention import LinearAttention
from bakeoff_linear.retention import Retention
from bakeoff_linear.rwkv7 import RWKV7
from bakeoff_linear.rwkv_channel_mix import RWKVChannelMix

BAKEOFF_API = 1

__all__ = [
    "GLA",
    "KDA",
    "RWKV7",
    "DeltaNet",
    "GatedConvolution",
    "GatedDeltaNet",
    "LinearAttention",
    "RWKVChannelMix",
    "Retention",
]
