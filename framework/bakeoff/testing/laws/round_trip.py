"""Law 9: what is saved comes back: parameters and buffers exactly, and, through a recipe, class and arguments."""

from __future__ import annotations

import torch

from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import PART_KINDS, Broken, law
from bakeoff.testing.laws.initialisation import tensors


@law(9, "round trip", *PART_KINDS)
def round_trip(candidate: Candidate) -> None:
    """A `state_dict` loaded into a new part gives every parameter and buffer bit for bit."""
    saved, other = candidate.filled(), candidate.filled()
    with torch.no_grad():
        for _, tensor in tensors(other):
            tensor.zero_()
    other.load_state_dict(saved.state_dict())
    kept = other.state_dict()
    for name, tensor in tensors(saved):
        if name in kept and not torch.equal(tensor, kept[name]):
            raise Broken(f"{name} does not come back from a state_dict")
