"""Attention ops: the definition of softmax attention, in every form that an op accepts."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.past import Past
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.needs import gather
from bakeoff.testing.build import context
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law

_WINDOWS = (None, 3)
_CAPS = (None, 2.0)
_GROUPS = (4, 1)


@law(6, "definition", "attention_op")
def definition(candidate: Candidate) -> None:
    """Outputs, log-sum-exps and gradients equal those of the formula; combinations that an op refuses are left out."""
    accepted = 0
    for window, cap, groups in product(_WINDOWS, _CAPS, _GROUPS):
        place = context().child(window=window, soft_cap=cap, n_kv_heads=groups)
        try:
            op = candidate.build(place)
        except UserError:
            continue
        accepted += 1
        form = f"window {window}, soft_cap {cap}, {groups} key-value heads"
        for (T, held, sequence), extra in product(_sequences(), ("", "bias", "sinks")):
            given = _given(candidate, T, held + T, groups, extra)
            told = f"T={T} after {held}, {form}" + (f", {extra}" if extra else "")
            _compare(told, op, sequence.prepare(gather(op)), given, _formula(sequence, window, cap, **given))
    if not accepted:
        raise Broken("no context is accepted: with or without window and soft cap")


def _sequences() -> list[tuple[int, int, Sequence]]:
    """A whole sequence, packed documents, padding, and tokens after a past, in one row each."""
    tokens = torch.zeros(1, 7, dtype=torch.long)
    past = Past(1, 9, slots=False).advance(Sequence(tokens[:, :5], past=Past(1, 9, slots=False)))
    return [
        (7, 0, Sequence(tokens)),
        (7, 0, Sequence(tokens, documents=torch.tensor([[3, 3, 4, 4, 4, 4, 9]]))),
        (7, 0, Sequence(tokens, real=torch.tensor([[False, False, True, True, True, True, True]]))),
        (1, 5, Sequence(tokens[:, :1], past=past)),
        (3, 5, Sequence(tokens[:, :3], past=past)),
    ]


def _given(candidate: Candidate, T: int, S: int, groups: int, extra: str) -> dict[str, Tensor]:
    generator = candidate.generator()
    shapes = {"q": (1, T, 4, 4), "k": (1, S, groups, 4), "v": (1, S, groups, 4)}
    more: dict[str, tuple[int, ...]] = {"bias": (1, 4, T, S), "sinks": (4,)}
    wanted = {**shapes, **{name: shape for name, shape in more.items() if name == extra}}
    return {name: torch.randn(shape, generator=generator).double().requires_grad_() for name, shape in wanted.items()}


def _compare(told: str, op: Any, sequence: Sequence, given: dict[str, Tensor], want: tuple[Tensor, Tensor]) -> None:
    q, k, v, *_ = given.values()
    got = op(q, k, v, sequence, **{name: t for name, t in given.items() if name in ("bias", "sinks")})
    real = torch.ones(got[0].shape[:2], dtype=torch.bool) if sequence.real is None else sequence.real
    if not torch.allclose(got[0][real], want[0][real], atol=1e-6):
        raise Broken(f"{told}: an output differs by {_most(got[0][real], want[0][real])} from the formula")
    if got[1] is not None and "sinks" not in given:
        one, other = (total.mT[real].double() for total in (got[1], want[1]))
        if not torch.allclose(one, other, atol=1e-6):
            raise Broken(f"{told}: a log-sum-exp differs by {_most(one, other)} from the formula")
    leaves = list(given.values())
    slopes = (torch.autograd.grad(y[0][real].square().sum(), leaves, allow_unused=True) for y in (got, want))
    for name, one, other in zip(given, *slopes, strict=True):
        if one is None or not torch.allclose(one, other, atol=1e-6):
            raise Broken(f"{told}: the gradient of {name} differs from that of the formula")


def _most(one: Tensor, other: Tensor) -> str:
    return f"{float((one - other).detach().abs().max()):.2g}"


def _formula(
    sequence: Sequence,
    window: int | None,
    cap: float | None,
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(B, T, H, N) and log-sum-exp (B, H, T), by one softmax over the keys that are seen, and the sink."""
    keys = sequence.entries()
    k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
    back = sequence.index[:, :, None] - keys.index[:, None]
    seen = (back >= 0) & (back < (window or back.numel() + 1))
    if sequence.documents is not None:
        seen = seen & (sequence.documents[:, :, None] == keys.documents[:, None])  # type: ignore[index]
    if keys.real is not None:
        seen = seen & keys.real[:, None]
    logits = torch.einsum("bthn,bshn->bhts", q, k) / q.shape[-1] ** 0.5
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    logits = logits if bias is None else logits + bias
    logits = logits.masked_fill(~seen[:, None], -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks[:, None, None].expand(*logits.shape[:3], 1)], -1)
    total = logits.logsumexp(-1)
    weights = (logits - total.masked_fill(total == -torch.inf, 0.0)[..., None]).exp()[..., : k.shape[1]]
    return torch.einsum("bhts,bshn->bthn", weights, v), total
