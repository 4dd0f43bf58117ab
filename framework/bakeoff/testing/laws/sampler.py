"""Samplers: ids of the vocabulary, each row by itself, the same for the same randomness."""

from __future__ import annotations

import torch
from torch import Tensor

from bakeoff.interfaces.sampler import Sampler
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law
from bakeoff.testing.values import fixed_noise

_V = 11


@law(None, "choice", "sampler")
def choice(candidate: Candidate) -> None:
    """(B,) valid ids, of each row alone; equal for equal randomness; a certain token is chosen, an impossible never."""
    with fixed_noise(candidate.seed):
        _choices(candidate.build(), candidate.generator())


def _choices(sampler: Sampler, generator: torch.Generator) -> None:
    for B in (1, 4):
        logits = torch.randn(B, _V, generator=generator) * 3
        logits[:, 2] = -torch.inf
        seen = torch.rand(B, _V, generator=generator) < 0.3
        for draw in (0.0, 0.37, 1 - 2**-24):
            _valid(sampler, f"B={B}, uniform={draw:.3g}", logits, seen, torch.full((B,), draw))
        _valid(sampler, f"B={B}, uniform different in each row", logits, seen, torch.linspace(0.9, 0.1, B))
    for token in range(_V):
        certain = torch.full((1, _V), -1e4).index_fill_(1, torch.tensor([token]), 0.0)
        none = torch.zeros(1, _V, dtype=torch.bool)
        chosen = int(sampler.choose(certain, none, torch.tensor([0.5])))
        if chosen != token:
            raise Broken(f"B=1: all mass is on token {token}, but token {chosen} is chosen")


def _valid(sampler: Sampler, told: str, logits: Tensor, seen: Tensor, uniform: Tensor) -> None:
    def choose(rows: slice) -> Tensor:
        return sampler.choose(logits[rows].clone(), seen[rows].clone(), uniform[rows].clone())

    ids = choose(slice(None))
    if ids.shape != uniform.shape or ids.dtype != torch.long:
        raise Broken(f"{told}: ids are {tuple(ids.shape)} {ids.dtype}, not ({len(uniform)},) torch.int64")
    if not bool(((ids >= 0) & (ids < _V)).all()):
        raise Broken(f"{told}: ids {ids.tolist()} are not all from 0 to {_V - 1}")
    if 2 in ids.tolist():
        raise Broken(f"{told}: token 2, whose logit is -inf, is chosen")
    if not all(torch.equal(ids, choose(slice(None))) for _ in range(8)):
        raise Broken(f"{told}: asked again with the same randomness, other ids are chosen")
    for row in range(len(ids)):
        if int(choose(slice(row, row + 1))) != int(ids[row]):
            raise Broken(f"{told}: row {row} alone gets another id than in the batch")
