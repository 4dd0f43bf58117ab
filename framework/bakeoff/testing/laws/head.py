"""Heads: the loss is that of the plain formula, whatever it is computed by."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from bakeoff.errors import CapabilityError
from bakeoff.testing.batch import pulled
from bakeoff.testing.build import D_MODEL, VOCABULARY
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, NotApplicable, NotClaimed, law

#: Tokens: one, a few, and more than are usually computed at once.
_LENGTHS = (1, 5, 700)


@law(6, "loss", "head")
def loss(candidate: Candidate) -> None:
    """The fused loss and its gradients equal cross-entropy of the logits; a weight of 0 takes a token out."""
    head: Any = candidate.filled().double().part
    if _logits(head, 1, candidate).shape != (1, 1, VOCABULARY):
        raise NotApplicable("the answer is no logits over the vocabulary")
    for T in _LENGTHS:
        hidden = _hidden(T, candidate)
        targets = torch.randint(VOCABULARY, (1, T), generator=candidate.generator())
        weights = (torch.arange(T) % 3 != 1).double()[None]
        _equal(f"T={T}", head, hidden, targets, weights)


def _equal(told: str, head: Any, hidden: Tensor, targets: Tensor, weights: Tensor) -> None:
    logits: Tensor = head(hidden).flatten(0, 1)
    nats = F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)
    each = head(hidden, targets, reduce="none")
    if not torch.allclose(each, nats, rtol=1e-6, atol=1e-9):
        raise Broken(f"{told}: reduce='none' differs from cross-entropy by {float((each - nats).abs().max()):.2g}")
    fused = head(hidden, targets, weights)
    fused = fused[0] if isinstance(fused, tuple) else fused
    plain = (nats * weights).sum()
    if not torch.allclose(fused, plain, rtol=1e-6, atol=1e-9):
        raise Broken(f"{told}: the loss is {fused.item():.6g}, cross-entropy of the logits {plain.item():.6g}")
    named = {"hidden": hidden, **dict(head.named_parameters())}
    pairs = zip(named, *(pulled(value, list(named.values())) for value in (fused, plain)), strict=True)
    for name, one, other in pairs:
        if not torch.allclose(one, other, rtol=1e-5, atol=1e-8):
            raise Broken(f"{told}: the gradient of {name} differs by {float((one - other).abs().max()):.2g}")


@law(None, "scores", "head")
def scores(candidate: Candidate) -> None:
    """Who scores: a number for each token, of its own hidden state, that all of the state's channels move."""
    head: Any = candidate.filled().double().part
    hidden = _hidden(5, candidate)
    try:
        found = head.score(hidden)
    except CapabilityError:
        raise NotClaimed("score") from None
    if found.shape != (1, 5) or not bool(found.isfinite().all()):
        raise Broken(f"T=5: scores are {tuple(found.shape)}, not (1, 5), or not finite")
    for token in range(5):
        among, alone = found[0, token].item(), head.score(hidden[:, token : token + 1])[0, 0].item()
        if not math.isclose(among, alone, rel_tol=1e-9, abs_tol=1e-9):
            raise Broken(f"T=5: token {token} scores {among:.6g}, and alone {alone:.6g}")
        (moved,) = pulled(head.score(hidden)[0, token], [hidden])
        if (moved[0] != 0).any(1).nonzero().flatten().tolist() != [token]:
            raise Broken(f"T=5: the score of token {token} does not come from its own hidden state alone")


@law(8, "cost", "head", claims=("flops",))
def cost(candidate: Candidate) -> None:
    """`flops` equals the products of a run."""
    head: Any = candidate.filled().part
    for queries, keys in ((1, 1), (7, 7), (3, 11)):
        try:
            declared = head.flops(queries, keys)
        except CapabilityError:
            raise NotClaimed("flops") from None
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            head(_hidden(queries, candidate).float())
        if declared != counter.get_total_flops():
            size = f"flops(queries={queries}, keys={keys})"
            raise Broken(f"{size} is {declared:,}, but the products of a run are {counter.get_total_flops():,}")


def _hidden(T: int, candidate: Candidate) -> Tensor:
    return torch.randn(1, T, D_MODEL, generator=candidate.generator(), dtype=torch.float64).requires_grad_()


def _logits(head: Any, T: int, candidate: Candidate) -> Tensor:
    with torch.no_grad():
        return head(_hidden(T, candidate))
