"""Mixtures of experts: one feed-forward, routers, and losses that balance them."""

from bakeoff_moe.device_balance import DeviceBalance
from bakeoff_moe.load_balance import LoadBalance
from bakeoff_moe.mixture_of_experts import MixtureOfExperts
from bakeoff_moe.router_z_loss import RouterZLoss
from bakeoff_moe.sequence_balance import SequenceBalance
from bakeoff_moe.top_k import TopK

BAKEOFF_API = 1

__all__ = [
    "DeviceBalance",
    "LoadBalance",
    "MixtureOfExperts",
    "RouterZLoss",
    "SequenceBalance",
    "TopK",
]
