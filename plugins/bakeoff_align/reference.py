"""The reference policy: the model as it was before the objective changed it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces.cut import shares_of
from bakeoff.interfaces.objective import Model
from bakeoff.parts.adapters import has_adapters, without
from bakeoff.parts.modes import evaluating
from torch import Tensor, nn

from bakeoff_align.log_probabilities import token_log_probabilities


class ReferenceModel(nn.Module):
    """The model that it is made from, as it stands then; a model with adapters stays the one model, without them.

    A copy is part of the state of the objective that holds it. It is never trained, has no dropout, and is no part of
    the final weights.

    Parameters
    ----------
    model : with the weights that training begins from. who : the objective's name, for `CapabilityError`, which is
        raised where ranks hold pieces of the model, of which there can be no copy.
    """

    def __init__(self, model: Any, who: str):
        super().__init__()
        self.frozen: Any = None
        if not has_adapters(model):
            _refuse_pieces(model, who)
            self.frozen = _frozen(model)

    def train(self, mode: bool = True) -> ReferenceModel:
        """Stays in evaluation mode."""
        return super().train(False)

    @contextmanager
    def of(self, model: Any) -> Iterator[Any]:
        """The reference of `model`, without gradients and in evaluation mode, while the context lasts."""
        with torch.no_grad():
            if self.frozen is not None:
                yield self.frozen
                return
            with without(model), evaluating(model):
                yield model

    def log_probabilities(self, model: Model, batch: Mapping[str, Tensor | None]) -> Tensor:
        """(B, T), as `token_log_probabilities` of the reference of `model`."""
        with self.of(model) as reference:
            return token_log_probabilities(reference, batch)


def _frozen(model: nn.Module) -> nn.Module:
    """A copy that shares no tensor; tensors are copied by torch, so that on shapes alone these are."""
    held: dict[int, Any] = {id(t): nn.Parameter(t.detach().clone(), False) for t in model.parameters()}
    held |= {id(t): t.clone() for t in model.buffers()}
    return copy.deepcopy(model, held).eval()


def _refuse_pieces(model: nn.Module, who: str) -> None:
    pieces = any(parameter.is_meta or hasattr(parameter, "to_local") for parameter in model.parameters())
    if pieces or any(shares_of(part) for part in model.modules()):
        raise CapabilityError(
            f"{who} compares with a frozen copy of the model that it begins from, and the ranks of a mesh hold pieces "
            "of it: use trainer.strategy: ddp, or train adapters, without which the model is its own reference"
        )
