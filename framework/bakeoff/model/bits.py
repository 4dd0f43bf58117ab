"""Validation in bits per byte: sums over targets first, one division at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bakeoff.interfaces.objective import MEAN, Objective, Statistics, Terms, TokenLosses
from bakeoff.model.carrying import before
from bakeoff.parts.modes import evaluating


def evaluate_bits(
    model: nn.Module,
    objective: Any,
    loader: Iterable[Mapping[str, Tensor | None]],
    bytes_per_token: np.ndarray | None,
    device: torch.device | str = "cpu",
    *,
    add_up: Callable[[Tensor], Tensor] | None = None,
    optional: bool = False,
) -> dict[str, float]:
    """Cost of the targets of all batches: `nats_per_token`, `tokens` and, where bytes are known, `bits_per_byte`.

    Nats and bytes are summed over real targets in double precision, so that neither batch size, nor a short last batch,
    nor the number of ranks changes the answer. Batches that hold `fresh` are consecutive windows of lanes: each begins
    with the state after the one before it, but for the rows that `fresh` names.

    Parameters
    ----------
    bytes_per_token : (V,) bytes of text that each id stands for; None for a tokenizer that is not lossless: its ids do
        not stand for all of the text, so no bits per byte are given.
    add_up : adds the vector of sums up over ranks; None for one rank.
    optional : there may be no target, or none that is text, and then there is no such figure; else that is an error.
    """
    table = None if bytes_per_token is None else torch.as_tensor(bytes_per_token, device=device).long()
    sums, state = torch.zeros(3, dtype=torch.float64), None
    with evaluating(model), evaluating(objective), torch.no_grad():
        for batch in loader:
            moved = {name: None if value is None else value.to(device) for name, value in batch.items()}
            losses, state = _losses(model, objective, moved, state)
            sums += _sums(losses, table).cpu()
    if add_up is not None:
        sums = add_up(sums)
    nats, tokens, size = sums.tolist()
    if not tokens and optional:
        return {}
    if not tokens:
        raise ValueError("validation holds no target: give it more tokens, or longer documents")
    result = {"nats_per_token": nats / tokens, "tokens": tokens}
    if table is not None and not size and not optional:
        raise ValueError("the validation targets stand for no byte of text, so there are no bits per byte")
    if size:
        result["bits_per_byte"] = nats / math.log(2) / size
    return result


def evaluate_means(
    model: nn.Module,
    terms_of: Callable[[Mapping[str, Tensor | None]], tuple[Terms, Statistics]],
    loader: Iterable[Mapping[str, Tensor | None]],
    device: torch.device | str = "cpu",
    *,
    add_up: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """What an objective tells of all batches as means, each under its name, `mean.NAME`, and its loss as `mean.loss`.

    Parameters
    ----------
    terms_of : the objective's terms and statistics of a batch.
    """
    names: list[str] = []
    sums = torch.zeros(0, 2, dtype=torch.float64)
    with evaluating(model), torch.no_grad():
        for batch in loader:
            terms, statistics = terms_of({name: None if v is None else v.to(device) for name, v in batch.items()})
            pairs = {f"{MEAN}loss": torch.stack(terms["loss"])}
            pairs |= {name: value for name, value in statistics.items() if name.startswith(MEAN)}
            each = torch.stack([pair.detach().double().cpu() for pair in pairs.values()])
            names, sums = list(pairs), each if not names else sums + each
    if add_up is not None:
        sums = add_up(sums)
    return {name: total / weight for name, (total, weight) in zip(names, sums.tolist(), strict=True) if weight}


def _losses(
    model: Any, objective: Objective, batch: Mapping[str, Tensor | None], state: Any
) -> tuple[TokenLosses, Any]:
    """What the tokens of a batch cost, and the state to go on with, where there is one."""
    if "fresh" not in batch:
        return objective.token_losses(model, batch), None
    losses = objective.token_losses(model, batch, before(model, state, batch))  # type: ignore[call-arg]
    return losses, model.backbone.carry(losses.state)


def _sums(losses: TokenLosses, table: Tensor | None) -> Tensor:
    """Nats, count and bytes of the real targets, (3,) double."""
    real = losses.weights != 0
    nats = losses.nats[real].double().sum()
    size = torch.zeros_like(nats) if table is None else table[losses.targets[real]].sum().double()
    return torch.stack([nats, real.sum().double(), size])
