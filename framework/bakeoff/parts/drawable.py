"""Which ids generation may draw."""

from __future__ import annotations

import torch
from torch import Tensor


def drawable(vocab_size: int, text_size: int | Tensor, device: torch.device | None = None) -> Tensor:
    """(vocab_size,) bool: ids of text, which are the first `text_size`, and the end; neither padding, nor mask, nor ids
    that a model has beyond its tokenizer's. What answers are distributions over is these alone."""
    ids = torch.arange(vocab_size, device=device)
    return (ids < text_size) | (ids == text_size + 1)
