"""Randomness without memory: what is drawn in a micro-batch is a function of its place in the run."""

from __future__ import annotations

import torch

_MASK = 2**64 - 1


def mix(*numbers: int) -> int:
    """One well-spread number below 2**63 from several (SplitMix64 steps; Steele, Lea and Flood 2014)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1


def seed_device(seed: int, device: torch.device) -> None:
    """Seed the default generators that a forward pass on `device` draws from."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
