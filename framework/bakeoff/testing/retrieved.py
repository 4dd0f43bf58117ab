"""Neighbours for the sequences that laws make up: a function of where a chunk ends and of its last token alone."""

from __future__ import annotations

import torch
from torch import Tensor

from bakeoff.interfaces.neighbours import Neighbours
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.chunks import ends

#: Texts for each chunk.
K = 2


def retrieved(sequence: Sequence, chunk: int, vocabulary: int) -> Neighbours:
    """Neighbours of the whole chunks that end within a call; every third text ends early, and some were not found.

    They are the same however a sequence is cut into calls, whatever stands beside it, and change with the last token
    of their chunk.
    """
    at = ends(sequence, chunk)
    token = sequence.tokens.gather(1, at.places)
    number = sequence.positions.expand(sequence.batch, -1).gather(1, at.places) // chunk
    text = torch.arange(K, device=token.device)
    place = torch.arange(2 * chunk, device=token.device)
    seed = token[:, :, None] * 7 + number[:, :, None] * 3 + text  # (B, C, k)
    tokens = (seed[..., None] * 11 + place * (place + 5)) % vocabulary
    length = torch.where(seed % 3 == 0, chunk + 1, 2 * chunk)
    length = torch.where(seed % 5 == 1, 0, length)
    real = (place < length[..., None]) & (at.last >= 0)[:, :, None, None]
    return Neighbours(tokens, real, at.last)


def embedded(found: Neighbours, d_model: int) -> Tensor:
    """(B, C, k, L, D): a vector for each of the neighbours' tokens, whatever backbone there is."""
    channels = torch.arange(1, d_model + 1, device=found.tokens.device)
    return (found.tokens[..., None] * 2.4 + channels * 1.7 + (found.tokens[..., None] * channels) ** 0.5).sin()
