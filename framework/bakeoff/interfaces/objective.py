"""Kind `objective`: what the model is trained to do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.component import Component
from bakeoff.interfaces.dialogue import Dialogue, Encoded
from bakeoff.interfaces.head import Head
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer

#: name -> (sum over tokens, their weight); the trainer divides once, by the weight over the whole step, and adds the
#: terms up. A coefficient is part of the sum.
Terms = dict[str, tuple[Tensor, Tensor]]

#: name -> an additive tensor; "nats" (negative log-likelihood, detached) and "tokens" are always there. What is called
#: "mean.NAME" is (2,), a sum and its weight: the curve has NAME, the one divided by the other over the whole step.
Statistics = dict[str, Tensor]

#: Begins the name of a statistic that is a sum and its weight.
MEAN = "mean."


class Model(Protocol):
    """What an objective trains."""

    backbone: Backbone
    head: Head


class TokenLosses(NamedTuple):
    """What each token cost, (B, T) each: nats, the id that was to be predicted, and its weight (0: not a target).

    `state` is the one after the batch, if and only if one was given.
    """

    nats: Tensor
    targets: Tensor
    weights: Tensor
    state: Any = None


class Feedback(NamedTuple):
    """What a part shows whose random choices learn from what tokens cost: in memory, as "feedback.<anything>".

    Attributes
    ----------
    log_probability : (B, T), of the choice that was made for each token.
    baseline : (B, T), what the token is expected to cost, in nats.
    coefficient : of the loss.
    """

    log_probability: Tensor
    baseline: Tensor
    coefficient: float

    def loss(self, nats: Tensor) -> Tensor:
        """(B, T) -> (B, T): `(nats - b) log p + (b - nats)^2 / 2`, times the coefficient.

        Its gradient in log p is the policy gradient (Williams 1992); the first term gives the baseline none.
        """
        over = nats - self.baseline
        return self.coefficient * (over.detach() * self.log_probability + over.square() / 2)


class Objective(nn.Module, Component):
    """Prepares inputs, targets and weights, and calls `model.backbone` and `model.head`. The one owner of the shift.

    A batch holds `tokens` (B, L) long with L = `tokens_wanted(length)`, and, each or None, `documents` (B, L) long and
    `real` (B, L) bool.

    An objective that can continue where a row's last batch ended sets `carries_state`. Its `forward` and
    `token_losses` then take the backbone's state before the batch as a third argument, `state=None`, and where one is
    given, return the state after the first `length` tokens as well: `forward` as a third value, `token_losses` in its
    result.

    An objective that `reads_dialogues` gets rows that are made of dialogues by `encode`: `rows_each` of them stand next
    to each other, `weights` (B, L) says how much each token counts as a target, `labels` (B, L), where `encode` gives
    some, what is known at it (NaN: nothing), and each value that `encode` gives is a (B / rows_each,) float tensor.
    `tokens_wanted(length)` is then the most that a row may hold.
    """

    kind = "objective"
    carries_state: ClassVar[bool] = False
    """Takes a state and returns the one after it, as `trainer.stateful` demands."""
    shows_neighbours: ClassVar[bool] = False
    """Puts a batch's neighbours (`Neighbours.of`) into the memory of its sequence, as `data.retrieval` demands."""

    reads_dialogues: ClassVar[bool] = False
    """Is trained on the dialogues of the corpus under the template of the data, and not on windows of its text."""
    rows_each: ClassVar[int] = 1
    """How many rows a dialogue takes."""
    packs: ClassVar[bool] = False
    """Several dialogues may share a row, told apart by `documents`; so none has no values of its own."""
    collects: ClassVar[bool] = False
    """Learns from what the model itself says: a `PolicyObjective`."""
    additive: ClassVar[bool] = True
    """Terms and statistics of rows add up to those of their batch; else they depend on what shares a micro-batch."""
    example_model: ClassVar[Mapping[str, Any]] = {}
    """What the small model that the kit tries it with must have, where not any model will do, as under `model`."""

    def attach(self, model: Model, seed: int) -> None:
        """Make what depends on the model, which stands with the weights that it begins from: a head of the objective's
        own, a frozen copy. Called once, before the first step; a continued run then fills it from its checkpoint."""

    def encode(self, dialogue: Dialogue, template: Template, tokenizer: Tokenizer) -> Encoded:
        """The rows of a dialogue; `UserError` saying what is wrong with one that cannot be learnt from."""
        raise CapabilityError(
            f"{type(self).__name__} is trained on text and reads no dialogues: use an objective that does, such as sft"
        )

    def planned(self, rows: int, length: int) -> dict[str, Tensor]:
        """What a batch of so many rows of `length` inputs holds beside tokens, weights, documents and `real`, in right
        shapes: for plans, which run on shapes alone."""
        return {}

    def forwards(self) -> float:
        """Forward passes without gradients over the rows of a step, beside the one that is trained on: a reference's,
        or, of a `PolicyObjective`, at most what a step's share of a collection takes. For plans."""
        return 0.0

    @abstractmethod
    def tokens_wanted(self, length: int) -> int:
        """How many tokens of raw text a training sequence of `length` inputs takes."""

    @abstractmethod
    def forward(self, model: Model, batch: Mapping[str, Tensor | None]) -> tuple[Terms, Statistics]:
        """`(terms, statistics)` of a batch, under gradients or not."""

    @abstractmethod
    def token_losses(self, model: Model, batch: Mapping[str, Tensor | None]) -> TokenLosses:
        """Cost of each target without penalties, for evaluation."""
