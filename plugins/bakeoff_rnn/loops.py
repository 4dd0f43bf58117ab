"""What true loops over tokens share: what a token hands to the next where documents begin or rows hold padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Passing(NamedTuple):
    """Token t hands `new_t s_t + old_t s_(t-1)` on, s_t being its state; (T, B, 1) each, of zeros and ones.

    After padding the old state is handed on, before a document's start nothing.
    """

    new: Tensor
    old: Tensor


def passing(starts: Tensor | None, real: Tensor | None, dtype: torch.dtype) -> Passing | None:
    """From `starts` and `real` (B, T); None where each token hands on its own state."""
    if starts is None and real is None:
        return None
    if starts is None:
        assert real is not None
        kept = torch.ones_like(real)
    else:
        kept = torch.nn.functional.pad(~starts[:, 1:], (0, 1), value=True)
    new, old = (kept, torch.zeros_like(kept)) if real is None else (kept & real, kept & ~real)
    return Passing(*(mask.t().to(dtype)[:, :, None] for mask in (new, old)))


def entering(states: tuple[Tensor, ...], starts: Tensor | None) -> tuple[Tensor, ...]:
    """What of `states` (B, ...) reaches the first token: nothing where it starts a document."""
    if starts is None:
        return states
    keep = ~starts[:, 0]
    return tuple(torch.where(keep.view(-1, *(1,) * (state.ndim - 1)), state, 0) for state in states)


def kept_by(real: Tensor | None, new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The states (B, ...) after one token, `real` (B, 1): the old ones where it is padding."""
    if real is None:
        return new
    pairs = zip(new, old, strict=True)
    return tuple(torch.where(real.view(-1, *(1,) * (a.ndim - 1)), a, b) for a, b in pairs)
