"""By what a model ranks completions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from bakeoff import load_run
from bakeoff.errors import CapabilityError
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.adapters import has_adapters
from torch import Tensor

from bakeoff_align.log_probabilities import lengths, summed, told
from bakeoff_align.objectives.preference.preference import Preference, Referred

if TYPE_CHECKING:
    from bakeoff.evaluate.measured import Measured

#: Rows of one length, `tokens` (B, L), of whose tokens `weights` (B, L) are the completion's.
Batch = dict[str, Tensor]


class Ranking(NamedTuple):
    """What completions are ranked by: `words`, and `score`, (B,) of a batch.

    `room` : tokens that a row may have beyond the model's max_length.
    """

    words: str
    score: Callable[[Batch], Tensor]
    room: int = 1


def ranking(measured: Measured, by: str | None) -> Ranking:
    """Of the kinds in `RANKINGS`; None: of the first that the model and its objective have.

    Raises `CapabilityError` where they do not have that kind.
    """
    if by is None:
        by = "score" if _scores(measured) else "objective" if isinstance(measured.objective, Preference) else "sum"
    return RANKINGS[by](measured)


def by_score(measured: Measured) -> Ranking:
    """What the head makes of the last token."""
    model = measured.model

    def score(batch: Batch) -> Tensor:
        return model.head.score(model.backbone(Sequence(batch["tokens"])).y)[:, -1]

    if not _scores(measured):
        raise CapabilityError(
            f"preference_accuracy: by is 'score', but the head {type(model.head).__name__} scores nothing: use a model "
            "with one that does, such as {use: scored}, or give by: sum"
        )
    return Ranking("the score at its last token", score, room=0)


def by_objective(measured: Measured) -> Ranking:
    """The reward that the run's objective stands for."""
    model, objective = measured.model, copy.deepcopy(measured.objective)
    if not isinstance(objective, Preference):
        raise CapabilityError(
            f"preference_accuracy: by is 'objective', but {type(objective).__name__} stands for no reward, as dpo and "
            "its like do: give by: sum or by: mean"
        )
    words = "the objective's score"
    if isinstance(objective, Referred):
        words = "how much more probable it has become"
        objective.attach(_begun(measured), 0)
    return Ranking(words, lambda batch: objective.scores(model, batch, told(model, batch)))


def by_sum(measured: Measured) -> Ranking:
    """Log-probability."""

    def score(batch: Batch) -> Tensor:
        found = told(measured.model, batch)
        return summed(found.log_probabilities, found.shifted.weights)

    return Ranking("its log-probability", score)


def by_mean(measured: Measured) -> Ranking:
    """Log-probability of a token."""

    def score(batch: Batch) -> Tensor:
        found = told(measured.model, batch)
        return summed(found.log_probabilities, found.shifted.weights) / lengths(found.shifted.weights)

    return Ranking("the mean log-probability of its tokens", score)


#: By what completions may be ranked.
RANKINGS: dict[str, Callable[[Measured], Ranking]] = {
    "score": by_score,
    "objective": by_objective,
    "sum": by_sum,
    "mean": by_mean,
}


def _scores(measured: Measured) -> bool:
    """Whether the head scores."""
    embedding = measured.model.backbone.embedding
    try:
        with torch.no_grad():
            measured.model.head.score(embedding.new_zeros(1, 1, embedding.shape[1]))
    except CapabilityError:
        return False
    return True


def _begun(measured: Measured) -> Any:
    """The model that training began from: the run that the recipe names, or the values that it draws."""
    if has_adapters(measured.model):
        return measured.model
    recipe, data = measured.recipe, measured.data
    if recipe.tree["weights"] is not None:
        return load_run(recipe.tree["weights"], device=measured.device).model
    drawn = recipe.build("model", vocab_size=data.vocab_size, max_length=data.length)
    return drawn.initialise(recipe.seed_of("initialisation")).to(measured.device)
