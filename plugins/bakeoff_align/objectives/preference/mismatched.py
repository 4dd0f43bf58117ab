"""Prompts with completions of others: what KTO estimates the distance from its reference on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def mismatched(batch: Mapping[str, Tensor | None], counts: Tensor) -> dict[str, Tensor | None]:
    """Of the rows that count, (B,) bool, each prompt with the completion of the one before, of the first with the last.

    A completion goes from a row's first target to its end. What would be longer than a row of the batch is cut there.
    """
    tokens, weights, real = batch["tokens"], batch["weights"], batch.get("real")
    assert tokens is not None
    assert weights is not None
    rows = counts.nonzero()[:, 0]
    others = rows.roll(1)
    starts = (weights > 0).long().argmax(1)
    ends = torch.full_like(starts, tokens.shape[1]) if real is None else real.long().sum(1)
    at = torch.arange(tokens.shape[1], device=tokens.device)[None]
    after = at - starts[rows][:, None]  # place in the completion
    source = (starts[others][:, None] + after).clamp(0, tokens.shape[1] - 1)
    said = after >= 0
    there = ~said | (starts[others][:, None] + after < ends[others][:, None])
    mixed = torch.where(said, tokens[others].gather(1, source), tokens[rows])
    targets = torch.where(said & there, weights[others].gather(1, source), 0)
    return {"tokens": mixed, "weights": targets, "real": there, "documents": None}


def naive_mismatched(batch: Mapping[str, Tensor | None], counts: Tensor) -> list[tuple[list[int], list[float]]]:
    """Tokens and weights of each row, one row at a time."""
    tokens, weights, real = batch["tokens"], batch["weights"], batch.get("real")
    assert tokens is not None
    assert weights is not None
    parts = []
    for row in counts.nonzero()[:, 0].tolist():
        n = tokens.shape[1] if real is None else int(real[row].sum())
        words, told = tokens[row, :n].tolist(), weights[row, :n].tolist()
        start = next(t for t, weight in enumerate(told) if weight > 0)
        parts.append((words[:start], told[:start], words[start:], told[start:]))
    found = []
    for i, (prompt, unweighted, _, _) in enumerate(parts):
        _, _, completion, weighted = parts[i - 1]
        found.append(((prompt + completion)[: tokens.shape[1]], (unweighted + weighted)[: tokens.shape[1]]))
    return found
