"""Prompts with completions of others: what KTO estimates the distance from its reference on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def mismatched(batch: Mapping[str, Tensor | None], counts: Tensor) -> dict[str, Tensor | None]:
    """Each prompt with the completion of the row before, of the first with the last; of rows that count, (B,) bool.

    A completion goes from a row's first target to its end. What would be longer than the longest row is cut there.
    Behind these rows stand, without targets, as many as did not count.
    """
    tokens, weights, real = batch["tokens"], batch["weights"], batch.get("real")
    assert tokens is not None
    assert weights is not None
    B, L = tokens.shape
    starts = (weights > 0).long().argmax(1)
    ends = torch.full_like(starts, L) if real is None else real.long().sum(1)
    number, at = torch.arange(B, device=tokens.device), torch.arange(L, device=tokens.device)
    rows = (~counts).long().argsort(stable=True)
    others = rows[(number - 1) % counts.sum().clamp(min=1)]
    source = starts[others][:, None] + at - starts[rows][:, None]  # place in the other row
    said = at >= starts[rows][:, None]
    there = (~said | (source < ends[others][:, None])) & (at < ends.max())
    source = source.clamp(0, L - 1)
    mixed = torch.where(said, tokens[others].gather(1, source), tokens[rows])
    targets = said & there & (number < counts.sum())[:, None]
    told = torch.where(targets, weights[others].gather(1, source), 0)
    return {"tokens": mixed, "weights": told, "real": there, "documents": None}


def naive_mismatched(batch: Mapping[str, Tensor | None], counts: Tensor) -> list[tuple[list[int], list[float]]]:
    """Tokens and weights of each row, one row at a time."""
    tokens, weights, real = batch["tokens"], batch["weights"], batch.get("real")
    assert tokens is not None
    assert weights is not None
    parts, longest = [], tokens.shape[1] if real is None else int(real.sum(1).max())
    for row in counts.nonzero()[:, 0].tolist():
        n = tokens.shape[1] if real is None else int(real[row].sum())
        words, told = tokens[row, :n].tolist(), weights[row, :n].tolist()
        start = next(t for t, weight in enumerate(told) if weight > 0)
        parts.append((words[:start], told[:start], words[start:], told[start:]))
    found = []
    for i, (prompt, unweighted, _, _) in enumerate(parts):
        _, _, completion, weighted = parts[i - 1]
        found.append(((prompt + completion)[:longest], (unweighted + weighted)[:longest]))
    return found
