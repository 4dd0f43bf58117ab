"""Which parameters of a model are trained: all, or those that a recipe names."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from bakeoff.parts.patterns import chosen


def train_only(model: nn.Module, patterns: Iterable[str], besides: Iterable[nn.Parameter] = ()) -> None:
    """Let the parameters whose name matches none of the patterns stay as they are, in place; on any device.

    Those given `besides` are trained too. A parameter that stands under several names, as of a tied head, is trained if
    any of them matches. What a part itself has frozen stays so. Raises `ValueError` for a pattern that matches no
    parameter, with the nearest names, and where nothing is left to train.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    kept = {id(named[name]) for name in chosen(patterns, named)} | {id(parameter) for parameter in besides}
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.requires_grad and id(parameter) in kept)
    if not trained_count(model):
        raise ValueError("nothing is left to train")


def trained_count(model: nn.Module) -> int:
    """Numbers in the parameters that are trained, a shared one counted once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
