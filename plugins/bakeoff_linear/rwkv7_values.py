"""The values that RWKV-7's vectors start from (Peng et al., 2025, and the authors' training code)."""

from __future__ import annotations

import torch
from torch import Tensor

#: Streams of mixed tokens, and how steeply each turns from the token before to the token itself over the channels.
MIXES = {"receptance": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}

#: Vectors by channel of the heads.
VECTORS = ("decay_bias", "rate_bias", "key_scale", "key_rate", "norm_weight", "norm_bias")


def rank(factor: float, d_model: int) -> int:
    """`factor` times the root of D, in whole 32s."""
    return max(32, round(factor * d_model**0.5 / 32) * 32)


def vectors(d_model: int, head_width: int, layer: int, depth: int) -> dict[str, Tensor]:
    """Starting values (D,) by parameter's name, of one of `depth` layers."""
    channel = torch.arange(d_model, dtype=torch.float64)
    relative = channel / max(1, d_model - 1)
    late, early = layer / max(1, depth - 1), 1.0 - layer / depth
    in_head = (channel % head_width) / max(1, head_width - 1) * 2 - 1
    zigzag = in_head * in_head.abs()
    found = {f"mix_{name}": 1 - (channel / d_model) ** (steep * early) for name, steep in MIXES.items()}
    found |= {
        "decay_bias": -5.5 + 6 * relative ** (1 + late**0.3) + 2.5 * zigzag,
        "rate_bias": -0.19 + 0.3 * zigzag + 0.4 * (relative - 0.5),
        "residual_bias": 0.73 - 0.4 * (relative - 0.5),
        "key_scale": 0.71 - 0.1 * (relative - 0.5),
        "key_rate": torch.full_like(channel, 1.02),
        "norm_weight": torch.ones_like(channel),
        "norm_bias": torch.zeros_like(channel),
    }
    return {name: vector.float() for name, vector in found.items()}
