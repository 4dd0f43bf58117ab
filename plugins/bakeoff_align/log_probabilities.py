"""What a model says of each token of a batch of encoded dialogues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from bakeoff.interfaces.objective import Feedback, Model, Statistics, Terms
from bakeoff.parts.causal import Shifted, shifted
from bakeoff.parts.drawable import drawable
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Tokens whose logits are held at once.
CHUNK = 512


class Told(NamedTuple):
    """What a model says of a batch.

    `log_probabilities` : (B, T), of each target, under gradients if they are on; 0 where the weight is 0.
    `entropy` : (B, T) nats of the distribution that the target is one draw of, detached; 0 where the weight is 0.
    `hidden` : (B, T, D), what the head was given. `aux` : what the backbone's layers report.
    """

    log_probabilities: Tensor
    entropy: Tensor
    shifted: Shifted
    hidden: Tensor
    aux: Mapping[str, Tensor]


def told(model: Model, batch: Mapping[str, Tensor | None]) -> Told:
    """What `model` says of the targets of a batch; no (B, T, V) tensor is kept for backward.

    Where the batch holds answers that were drawn, it says from what: `text_size` (B,), for `drawable`. Distributions
    are then over these ids. Over all ids, a policy whose KL is taken from its reward would earn by making whatever it
    says less likely, in favour of ids that are never drawn.
    """
    given = shifted(batch)
    result = model.backbone(given.sequence)
    drawn = batch.get("text_size")
    found = of_targets(model.head, result.y, given.targets, given.weights, None if drawn is None else drawn.amax())
    return Told(*found, given, result.y, result.aux)


def token_log_probabilities(model: Model, batch: Mapping[str, Tensor | None]) -> Tensor:
    """(B, T) log-probability of each target; 0 where the weight is 0."""
    return told(model, batch).log_probabilities


def of_targets(
    head: Any, hidden: Tensor, targets: Tensor, weights: Tensor, text_size: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`(log-probabilities, entropy)`, (B, T) each, from the hidden states (B, T, D); with `text_size` () among the ids
    that are drawable.

    The head is asked for some tokens at a time, whose logits backward computes anew. Where ranks share out the tokens
    of the hidden states, all logits are made at once.
    """
    if hidden.shape[1] != targets.shape[1]:
        return naive_of_targets(head, hidden, targets, weights, text_size)
    h, y, found = hidden.flatten(0, 1), targets.flatten(), []
    for start in range(0, max(len(y), 1), CHUNK):
        given = head, h[start : start + CHUNK], y[start : start + CHUNK], text_size
        found.append(
            checkpoint(_of_chunk, *given, use_reentrant=False) if torch.is_grad_enabled() else _of_chunk(*given)
        )
    log_p, entropy = (torch.cat(pieces).view_as(targets) for pieces in zip(*found, strict=True))
    return torch.where(weights > 0, log_p, 0), torch.where(weights > 0, entropy, 0)


def naive_of_targets(
    head: Any, hidden: Tensor, targets: Tensor, weights: Tensor, text_size: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same, with all logits at once."""
    log_p = normalised(head(hidden), text_size)
    entropy = torch.special.entr(log_p.detach().exp()).sum(-1)
    counts = weights > 0
    log_p = log_p.gather(-1, targets[..., None])[..., 0]
    return torch.where(counts, log_p, 0), torch.where(counts, entropy, 0)


def summed(values: Tensor, weights: Tensor) -> Tensor:
    """(B, T) -> (B,): the sum over a row's targets, those of a weight above 0."""
    return torch.where(weights > 0, values, 0).sum(-1)


def lengths(weights: Tensor) -> Tensor:
    """(B, T) -> (B,): how many targets a row has."""
    return (weights > 0).sum(-1)


def of_layers(model: Model, found: Told, count: Tensor, share: Tensor | None = None) -> tuple[Terms, Statistics]:
    """The terms and statistics that come from the backbone's layers, beside the objective's loss of weight `count`.

    Terms are the layers' own losses, and "feedback" for parts whose choices learn from what tokens cost; there each
    target counts `share` (B, T), which adds up to `count`. None: `count` is the number of targets.
    """
    terms: Terms = {name: (extra * count, count) for name, extra in model.backbone.layer_losses(found.aux).items()}
    memory = found.shifted.sequence.memory
    shown: list[Feedback] = [value for name, value in memory.items() if name.startswith("feedback.")]
    if shown:
        losses = torch.stack([each.loss(-found.log_probabilities.detach()) for each in shown]).sum(0)
        share = found.shifted.weights > 0 if share is None else share
        terms["feedback"] = ((losses * share).sum(), count)
    return terms, {f"aux.{name}": value.detach() for name, value in found.aux.items()}


def mean(total: Tensor, weight: Tensor) -> Tensor:
    """(2,), as a statistic called "mean.NAME" is: a sum and its weight."""
    return torch.stack([total.detach(), weight.to(total)])


def _of_chunk(head: Any, hidden: Tensor, targets: Tensor, text_size: Tensor | None) -> tuple[Tensor, Tensor]:
    """(M, D), (M,) -> (M,), (M,)."""
    log_p = normalised(head(hidden[None])[0], text_size)
    with torch.no_grad():
        entropy = torch.special.entr(log_p.exp()).sum(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], entropy


def normalised(logits: Tensor, text_size: int | Tensor | None = None) -> Tensor:
    """Log-probabilities, in float32 at least; with `text_size` among the ids that are drawable, and -inf elsewhere."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if text_size is not None:
        wide = wide.masked_fill(~drawable(wide.shape[-1], text_size, wide.device), -torch.inf)
    return wide.log_softmax(-1)
