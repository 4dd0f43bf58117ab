"""Converter `knn_lm_head`: a trained run, evaluated with a datastore."""

from __future__ import annotations

from typing import Any

from bakeoff.errors import UserError
from bakeoff.interfaces import Converter
from bakeoff.parts.weights import disagreements
from torch import Tensor, nn

from bakeoff_retro.knn.datastore import fingerprint
from bakeoff_retro.knn.head import KNNLM, plain_weights


class KNNLMHead(Converter):
    """Each weight is the run's; those of its head are in the recipe's `knn_lm`, whose datastore must be of the run."""

    reference = KNNLM.reference
    of_runs = True

    def from_run(self, source: nn.Module, model: nn.Module, seed: int) -> dict[str, Tensor]:
        """See `Converter`."""
        made = plain_weights(source)
        around: Any = model.get_submodule("head")
        if isinstance(around, KNNLM):
            if around.store is not None and fingerprint(made) != around.store.model:
                raise UserError(f"{around.store.folder} is the datastore of other weights than this run's")
            made = {_inside(name): tensor for name, tensor in made.items()}
        told = disagreements(made, model.state_dict())
        if told:
            raise UserError(
                "knn_lm_head: the run (there) has other weights than the recipe's model (here):\n  "
                + "\n  ".join(told)
                + "\nwrite model as the run's recipe has it, with its head as the head of knn_lm"
            )
        return made


def _inside(name: str) -> str:
    return f"head.inner.{name.removeprefix('head.')}" if name.startswith("head.") else name
