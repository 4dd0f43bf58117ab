"""Cross-entropy over a vocabulary without ever holding all logits.

The gradient is formed chunk by chunk in the forward pass, while the logits of a chunk are at hand, so that backward is
one multiplication. `naive_loss` is the same in a few lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bakeoff.parts.collectives import all_max, all_sum

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Tokens whose logits are held at once.
CHUNK = 512


class Slice(NamedTuple):
    """Which rows of the vocabulary's matrix stand here, where ranks share them out."""

    first: int
    vocab_size: int
    group: ProcessGroup


def capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    """`cap * tanh(logits / cap)`, or the logits themselves."""
    return logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)


def naive_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor,
    *,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`(penalised sum, sum of nats)` as in `fused_loss`, with all logits at once."""
    logits = capped(F.linear(hidden, weight, bias), soft_cap)
    lse = logits.logsumexp(-1)
    nats = lse - logits.gather(-1, targets[:, None])[:, 0]
    smooth = lse - logits.mean(-1)
    loss = (1 - label_smoothing) * nats + label_smoothing * smooth + z_loss * lse.square()
    return (loss * weights).sum(), (nats * weights).sum().detach()


def fused_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor,
    *,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    chunk: int = CHUNK,
    part: Slice | None = None,
) -> tuple[Tensor, Tensor]:
    """`(penalised sum, sum of nats)` of M tokens.

    Parameters
    ----------
    hidden : (M, D). weight : (V, D). bias : (V,) or None. targets, weights : (M,).
    part : of which rows `weight` and `bias` are; all ranks of its group call alike and get the same sums, and each its
        part of the gradient of `hidden`.
    z_loss : coefficient of the squared log-sum-exp (PaLM, arXiv:2204.02311).
    label_smoothing : share of the target's mass that is spread evenly over the vocabulary.

    Returns the sum that is differentiated, penalties included, and the plain negative log-likelihood in nats, detached.
    """
    return _FusedLoss.apply(hidden, weight, bias, targets, weights, soft_cap, z_loss, label_smoothing, chunk, part)


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor,
        soft_cap: float | None,
        z_loss: float,
        smoothing: float,
        chunk: int,
        part: Slice | None,
    ) -> tuple[Tensor, Tensor]:
        wants = [ctx.needs_input_grad[i] for i in range(3)]
        if torch.is_autocast_enabled(hidden.device.type):
            kind = torch.get_autocast_dtype(hidden.device.type)
            h, w = hidden.to(kind), weight.to(kind)
        else:
            h, w = hidden, weight.to(hidden.dtype)
        exact = torch.promote_types(h.dtype, torch.float32)
        d_hidden = torch.empty_like(h) if any(wants) else None
        d_weight = torch.zeros_like(w, dtype=exact) if wants[1] else None
        d_bias = torch.zeros_like(bias, dtype=exact) if wants[2] and bias is not None else None
        loss = torch.zeros((), dtype=exact, device=h.device)
        nats = torch.zeros_like(loss)
        M, V = h.shape[0], w.shape[0]
        buffer = torch.empty(min(chunk, M), V, dtype=h.dtype, device=h.device)
        for start in range(0, M, chunk):
            rows = slice(start, min(start + chunk, M))
            logits = torch.mm(h[rows], w.t(), out=buffer[: rows.stop - start])
            logits = (logits if bias is None else logits + bias).to(exact)
            penalised, plain, scale = _of_chunk(
                logits, targets[rows], weights[rows].to(exact), soft_cap, z_loss, smoothing, part, d_hidden is not None
            )
            loss += penalised
            nats += plain
            if scale is None or d_hidden is None:
                continue
            if d_bias is not None:
                d_bias.addmv_(logits.t(), scale[:, 0])
            slope, scaled = logits.to(h.dtype), (h[rows] * scale).to(h.dtype)
            torch.mm(slope, w, out=d_hidden[rows]).mul_(scale)
            if d_weight is not None:
                if d_weight.dtype == slope.dtype:
                    d_weight.addmm_(slope.t(), scaled)
                else:
                    d_weight += slope.t() @ scaled
        ctx.gradients = (d_hidden, d_weight, d_bias)
        ctx.kinds = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(nats)
        return loss, nats

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if gradient is None or kind is None else (gradient * d_loss).to(kind)
            for gradient, kind in zip(ctx.gradients, ctx.kinds, strict=True)
        ]
        return (*scaled, *[None] * 7)


def _of_chunk(
    logits: Tensor,
    targets: Tensor,
    share: Tensor,
    soft_cap: float | None,
    z_loss: float,
    smoothing: float,
    part: Slice | None,
    differentiate: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Penalised sum, sum of nats, and (M, 1) that rows of `logits`, overwritten, are to be multiplied by: the gradient.

    d loss / d logits = share ((1 + 2 z lse) softmax - (1 - eps) onehot - eps / V), times the slope of the cap. The rows
    are left multiplied by the sum of their exponentials, which spares a pass over them.
    """
    given, slope = logits, None
    if soft_cap is not None:
        bounded = logits.div_(soft_cap).tanh_()
        logits = bounded * soft_cap
        slope = torch.addcmul(bounded.new_ones(()), bounded, bounded, value=-1, out=bounded) if differentiate else None
    at, own = _places(targets[:, None], logits.shape[-1], part)
    V = logits.shape[-1] if part is None else part.vocab_size
    target, top = logits.gather(-1, at), logits.amax(-1, keepdim=True)
    sums = logits.sum(-1, keepdim=True) if smoothing else None
    if part is not None:
        top = all_max(top, part.group)
    exponentials = logits.sub_(top).exp_()
    total = exponentials.sum(-1, keepdim=True)
    if part is not None and own is not None:
        each = [total, target * own, *([] if sums is None else [sums])]
        total, target, *rest = all_sum(torch.stack(each), part.group).unbind()
        sums = rest[0] if rest else None
    lse = top + total.log()
    nats = ((lse - target)[:, 0] * share).sum()
    loss = (1 - smoothing) * nats + z_loss * (lse[:, 0].square() * share).sum()
    if sums is not None:
        loss = loss + smoothing * ((lse - sums / V)[:, 0] * share).sum()
    if not differentiate:
        return loss, nats, None
    grad = exponentials
    if z_loss:
        grad.mul_(1 + 2 * z_loss * lse)
    grad.scatter_add_(1, at, (smoothing - 1) * total if own is None else (smoothing - 1) * total * own)
    if smoothing:
        grad.sub_(smoothing / V * total)
    if slope is not None:
        torch.mul(grad, slope, out=given)
    return loss, nats, share[:, None] / total


def _places(at: Tensor, held: int, part: Slice | None) -> tuple[Tensor, Tensor | None]:
    """Columns of the targets, (M, 1), and whether they are among the `held` ones that stand here; None: all are."""
    if part is None:
        return at, None
    own = (at >= part.first) & (at < part.first + held)
    return torch.where(own, at - part.first, 0), own
