"""Head `knn_lm`: a language model that asks its datastore as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import Head, LayerContext, Reference
from bakeoff.parts.files import expanded
from bakeoff.parts.vocabulary import Vocabulary
from torch import Tensor, nn

from bakeoff_retro.knn.datastore import Datastore, fingerprint
from bakeoff_retro.knn.nearest import nearest


class KNNLM(Head):
    """`p(y|x) = weight p_kNN(y|h) + (1 - weight) p_LM(y|h)`, for the evaluation of a trained model.

    `p_kNN(y|h)` is proportional to the sum, over the `k` keys of the datastore that are nearest to h and have value y,
    of `exp(-|h - key|^2 / temperature)`; h is what the head is given. The datastore is that of the same weights
    (`bakeoff datastore`), which is checked whenever they have changed. Logits are `log p`. No gradient flows through
    `p_kNN`, and training is refused: the keys would no longer be the model's own. A token of a text that is in the
    datastore finds itself there, so that bits per byte of that text mean nothing.

    Parameters
    ----------
    head : gives p_LM; it has the parameters.
    datastore : folder; None: this is the head inside, exactly, and so it is where `weight` is 0.
    k : neighbours of a token.
    weight : of p_kNN, from 0 and below 1.
    temperature : what squared distances are divided by.
    """

    reference = Reference(
        "Khandelwal et al.",
        2020,
        "Generalization through Memorization: Nearest Neighbor Language Models",
        "https://arxiv.org/abs/1911.00172",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        head: Callable[[LayerContext], Head] = Vocabulary,
        datastore: str | None = None,
        k: int = 1024,
        weight: float = 0.25,
        temperature: float = 1.0,
    ):
        super().__init__(context)
        if k < 1:
            raise ValueError(f"k is {k}; it must be at least 1")
        if not 0 <= weight < 1:
            raise ValueError(f"weight is {weight}; it must lie in 0 <= weight < 1")
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; it must be positive")
        self.k, self.weight, self.temperature = k, weight, temperature
        self.inner = head(context)
        self.store = None if datastore is None else _opened(expanded(datastore), context, k)
        claims = self.inner.capabilities
        self.capabilities = claims if self.store is None else replace(claims, tensor_parallel=False, compile=False)
        self._checked: list[tuple[int, int]] = []

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Without a datastore, around one head and another."""
        return [{}, {"head": {"use": "vocabulary", "scale": 0.5, "soft_cap": 5.0, "bias": True}}]

    def tie(self, embedding: nn.Parameter) -> None:
        """Share it with the head inside."""
        self.inner.tie(embedding)

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        reduce: str = "sum",
        *,
        z_loss: float = 0.0,
        label_smoothing: float = 0.0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`log p` (B, T, V); with `targets` (B, T) the loss as `Vocabulary` gives it.

        The mixture sums to 1 by itself, so that `z_loss` adds nothing. Raises `CapabilityError` in training and for
        `label_smoothing`, and `UserError` where the datastore is of other weights.
        """
        if self.store is None or not self.weight:
            return self.inner(hidden, targets, weights, reduce, z_loss=z_loss, label_smoothing=label_smoothing)
        if (self.training and torch.is_grad_enabled()) or label_smoothing:
            raise CapabilityError(
                "head knn_lm evaluates a trained model and cannot train one with a datastore: set its datastore: null"
            )
        if reduce not in ("sum", "none"):
            raise ValueError(f"reduce is '{reduce}'; it is 'sum' or 'none'")
        shares, values = self._neighbours(self.store, hidden.detach())
        if targets is None:
            return self._logits(self.inner(hidden), shares, values)
        nats = self._nats(self.inner(hidden, targets, reduce="none"), targets, shares, values)
        if reduce == "none":
            return nats
        total = (nats if weights is None else nats * weights).sum()
        return total, total.detach()

    def flops(self, queries: int, keys: int) -> int:
        """The head inside, and the product of the tokens' states with every key."""
        searched = self.store is not None and self.weight
        return self.inner.flops(queries, keys) + (
            2 * queries * self.store.entries * self.store.width if searched else 0
        )

    @torch.compiler.disable
    def _neighbours(self, store: Datastore, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the neighbours' shares of p_kNN, and their tokens: (B, T, k) each."""
        self._check_weights(store)
        places = (*hidden.shape[:2], self.k)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        keys, values = store.on(hidden.device)
        found = nearest(hidden.flatten(0, 1).to(wide), keys, self.k)
        values = values[found.numbers].long()
        return (-found.distances / self.temperature).log_softmax(-1).view(places), values.view(places)

    def _logits(self, logits: Tensor, shares: Tensor, values: Tensor) -> Tensor:
        ours = logits.to(shares.dtype).log_softmax(-1)
        mass = torch.zeros_like(ours, requires_grad=False).scatter_add_(-1, values, shares.exp())
        return self._mixed(ours, mass.log())

    def _nats(self, nats: Tensor, targets: Tensor, shares: Tensor, values: Tensor) -> Tensor:
        mass = shares.masked_fill(values != targets[..., None], -torch.inf).logsumexp(-1)
        return -self._mixed(-nats, mass)

    def _mixed(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return torch.logaddexp(ours + math.log1p(-self.weight), theirs + math.log(self.weight))

    def _check_weights(self, store: Datastore) -> None:
        """Raise `UserError` if the head inside is not that of the datastore; look again once its weights changed."""
        held = [(tensor.data_ptr(), tensor._version) for tensor in self.inner.state_dict().values()]
        if held == self._checked:
            return
        if fingerprint(self.inner.state_dict()) != store.head:
            raise UserError(
                f"{store.folder} is of other weights than this model's (those of the head differ); make it anew: "
                "bakeoff datastore RUN --folder FOLDER"
            )
        self._checked = held


def _opened(folder: Path, context: LayerContext, k: int) -> Datastore:
    store = Datastore(folder)
    for what, theirs, ours in (
        ("states of width", store.width, context.d_model),
        ("a vocabulary of", store.vocab_size, context.vocab_size),
    ):
        if theirs != ours:
            raise UserError(
                f"{folder} holds {what} {theirs}, and the model has {ours}: it is another model's datastore"
            )
    if k > store.entries:
        raise UserError(f"k is {k}, and {folder} holds {store.entries} entries; k can be at most that")
    return store
