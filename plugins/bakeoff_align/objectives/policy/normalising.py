"""How much each token of an answer counts in the loss: what the sum of the losses is divided by."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

#: (mask (B, T) of ones and zeros, the most tokens that an answer may have) -> (how much each token counts (B, T), the
#: weight of the sum).
Normaliser = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def by_sequence(mask: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The mean over answers of each one's mean over its tokens (Shao et al. 2024)."""
    counts = mask.sum(1, keepdim=True)
    return mask / counts.clamp(min=1), (counts > 0).to(mask).sum()


def by_batch(mask: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The mean over all tokens of an optimizer step: its weight is tokens, so long answers weigh more."""
    return mask, mask.sum()


def by_length(mask: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The mean over answers of each one's sum, divided by a constant (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783)."""
    return mask / most, mask.amax(1).sum()


NORMALISERS: dict[str, Normaliser] = {"sequence": by_sequence, "batch": by_batch, "length": by_length}
