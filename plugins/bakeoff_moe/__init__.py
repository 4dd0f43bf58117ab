"""Mixtures of experts: one feed-forward, routers, and losses that balance them."""

from bakeoff_moe.bias_balanced import BiasBalanced
from bakeoff_moe.clamped_glu import ClampedGLU
from bakeoff_moe.device_balance import DeviceBalance
from bakeoff_moe.expert_choice import ExpertChoice
from bakeoff_moe.expert_load import ExpertLoad
from bakeoff_moe.group_limited import GroupLimited
from bakeoff_moe.gshard import GShard
from bakeoff_moe.hash_router import HashRouter
from bakeoff_moe.importance import Importance
from bakeoff_moe.linear_assignment import LinearAssignment
from bakeoff_moe.load_balance import LoadBalance
from bakeoff_moe.mixture_of_experts import MixtureOfExperts
from bakeoff_moe.noisy_top_k import NoisyTopK
from bakeoff_moe.reinforce_router import ReinforceRouter
from bakeoff_moe.router_z_loss import RouterZLoss
from bakeoff_moe.sequence_balance import SequenceBalance
from bakeoff_moe.sinkhorn import Sinkhorn
from bakeoff_moe.soft_mixture import SoftMixture
from bakeoff_moe.switch import Switch
from bakeoff_moe.top_k import TopK
from bakeoff_moe.upcycle import Upcycle

BAKEOFF_API = 1

__all__ = [
    "BiasBalanced",
    "ClampedGLU",
    "DeviceBalance",
    "ExpertChoice",
    "ExpertLoad",
    "GShard",
    "GroupLimited",
    "HashRouter",
    "Importance",
    "LinearAssignment",
    "LoadBalance",
    "MixtureOfExperts",
    "NoisyTopK",
    "ReinforceRouter",
    "RouterZLoss",
    "SequenceBalance",
    "Sinkhorn",
    "SoftMixture",
    "Switch",
    "TopK",
    "Upcycle",
]
