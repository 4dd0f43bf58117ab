"""Linear state-space models over rows whose tokens ranks share out.

Each span of tokens is computed by itself, and ranks tell each other what state it leaves. As the models are the same at
every token, that is all: a state s before a span of T tokens is `A^T s` after it, and adds `2 Re(C A^(t+1) s)` to the
output of token t.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from bakeoff.interfaces import Sequence
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.spans import relay
from torch import Tensor

from bakeoff_ssm.linear_systems import System, convolve, of_real_tokens, orbit, response, scan, squares
from bakeoff_ssm.transitions import paired, real


def along(u: Tensor, system: System, spans: Spans) -> Tensor:
    """y (B, T, D) of this rank's tokens `u`: by Fourier transforms where rows are whole, else by chunks."""
    pieces = list(zip(spans.split(u), spans.sequences, strict=True))
    longest = max(spans.sizes(spans.rank))
    powers = squares(system.A.explicit(), longest)
    if spans.whole.real is None and spans.whole.segments is None:
        K = response(powers, system.C, system.B, longest)
        alone = [Alone(convolve(piece, K[:, : piece.shape[1]]), leaving(piece, system, powers)) for piece, _ in pieces]
    else:
        alone = [_by_chunks(piece, system, own) for piece, own in pieces]
    told = [(real(each.left), *_passing(each.left.real, own)) for each, (_, own) in zip(alone, pieces, strict=True)]

    def follow(state: Tensor, told: tuple[Tensor, ...]) -> Tensor:
        left, kept, count = told
        return left + kept[:, None, None] * real(advanced(powers, paired(state), count.long()))

    entering = relay(told, follow, torch.zeros_like(told[0][0]), spans)
    first = powers[0].advance(paired(torch.stack(entering)))  # (spans, B, D, n)
    added = response(powers, system.C, first, longest).mT
    ys = [each.y + _seen(more, own) for each, more, (_, own) in zip(alone, added, pieces, strict=True)]
    return torch.cat(ys, 1)


class Alone(NamedTuple):
    """A span from an empty state: its y (B, T, D), and the state (B, D, n) complex that it leaves."""

    y: Tensor
    left: Tensor


def leaving(u: Tensor, system: System, powers: list[Any]) -> Tensor:
    """The state after `u` (B, T, D) from an empty one: of chunks of about sqrt(T) tokens, then of neighbours."""
    B, T, D = u.shape
    q = (T - 1).bit_length() // 2
    n = -(-T // 2**q)
    u = torch.cat([u.new_zeros(B, n * 2**q - T, D), u], 1).unflatten(1, (n, -1))
    written = real(orbit(powers, system.B, 2**q).flip(0))
    s = paired(torch.einsum("bnqd,qdm->bndm", u, written))
    for A in powers[q:]:
        if s.shape[1] > 1:
            s = torch.cat([torch.zeros_like(s[:, : s.shape[1] % 2]), s], 1)
            s = A.advance(s[:, ::2]) + s[:, 1::2]
    return s[:, 0]


def advanced(powers: list[Any], s: Tensor, count: Tensor) -> Tensor:
    """`A^count s` of states (B, D, n), `count` (B,) for each row."""
    for i, A in enumerate(powers):
        s = torch.where((count >> i & 1 == 1)[:, None, None], A.advance(s), s)
    return s


def _by_chunks(u: Tensor, system: System, own: Sequence) -> Alone:
    state = torch.zeros_like(system.B).expand(len(u), -1, -1)
    if own.real is None:
        y, left = scan(u, system, state=state, segments=own.segments)
    else:
        y, left = of_real_tokens(scan, u, system, state, own.segments, own.real)
    assert left is not None
    return Alone(y, left)


def _passing(like: Tensor, own: Sequence) -> tuple[Tensor, Tensor]:
    """Of each row 1 where a state passes a span, 0 where a document begins in it; and how many tokens it passes."""
    ones = like.new_ones(len(like))
    kept = ones if own.segments is None else (own.segments[:, -1] == 0).to(like.dtype)
    return kept, ones * own.length if own.real is None else own.real.sum(1).to(like.dtype)


def _seen(added: Tensor, own: Sequence) -> Tensor:
    """What the state that enters adds to each token, from what it adds to the first, second, … real one."""
    if own.real is None:
        added = added[:, : own.length]
    else:
        place = (own.real.long().cumsum(1) - 1).clamp_min(0)
        added = added.gather(1, place[..., None].expand(-1, -1, added.shape[2]))
    return added if own.segments is None else added * (own.segments == 0)[..., None]
