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
from bakeoff_retro.knn.indexes import INDEXES, found_by, open_index
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
    k : neighbours of a token; the paper has 1024, at more cost.
    weight : of p_kNN, from 0 and below 1.
    temperature : what squared distances are divided by.
    search : "flat" compares with every key, on the device of the model; "hnsw" and "ivf_pq" ask an index that the
        datastore holds (`bakeoff datastore --search`), on the CPU, which may miss some of the nearest. They gain where
        k is far below 1000, and 64.
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
        k: int = 64,
        weight: float = 0.25,
        temperature: float = 1.0,
        search: str = "flat",
    ):
        super().__init__(context)
        if k < 1:
            raise ValueError(f"k is {k}; it must be at least 1")
        if not 0 <= weight < 1:
            raise ValueError(f"weight is {weight}; it must lie in 0 <= weight < 1")
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; it must be positive")
        if search not in ("flat", *INDEXES):
            raise ValueError(f"search is '{search}'; it is one of flat, {', '.join(INDEXES)}")
        self.k, self.weight, self.temperature = k, weight, temperature
        self.inner, self.vocab_size = head(context), context.vocab_size
        self.store = None if datastore is None else _opened(expanded(datastore), context, k)
        self.index = None if self.store is None or search == "flat" else open_index(self.store, search)
        claims = self.inner.capabilities
        self.capabilities = claims if self.store is None else replace(claims, tensor_parallel=False, compile=False)
        self._checked: list[tuple[int, int]] = []

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Without a datastore, around another head than the default."""
        return [{"head": {"use": "vocabulary", "scale": 0.5, "soft_cap": 5.0, "bias": True}}]

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
        """The head inside, and the product of states with every key; what an index compares hangs on the states."""
        inside, store = self.inner.flops(queries, keys), self.store
        if store is None or not self.weight or self.index is not None:
            return inside
        return inside + 2 * queries * store.entries * store.width

    @torch.compiler.disable
    def _neighbours(self, store: Datastore, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the neighbours' shares of p_kNN, and their tokens: (B, T, k) each."""
        self._check_weights(store)
        places = (*hidden.shape[:2], self.k)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        keys, values = store.on(hidden.device)
        queries = hidden.flatten(0, 1).to(wide)
        found = nearest(queries, keys, self.k) if self.index is None else found_by(self.index, queries, self.k)
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
        told = None
        if store.vocab_size != self.vocab_size:
            told = f"it has a vocabulary of {store.vocab_size}, and the model one of {self.vocab_size}"
        elif fingerprint(self.inner.state_dict()) != store.head:
            told = "the weights of the head differ"
        if told:
            raise UserError(
                f"{store.folder} is the datastore of another model: {told}; make one of this: bakeoff datastore RUN"
            )
        self._checked = held


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights by the names that they have where its head stands by itself, not inside a `KNNLM`."""
    inside = isinstance(model.get_submodule("head"), KNNLM)
    weights = model.state_dict()
    return {name.replace("head.inner.", "head.", 1) if inside else name: value for name, value in weights.items()}


def _opened(folder: Path, context: LayerContext, k: int) -> Datastore:
    store = Datastore(folder)
    if store.width != context.d_model:
        raise UserError(
            f"{folder} holds states of width {store.width}, and the model's are {context.d_model} wide: it is another's"
        )
    if k > store.entries:
        raise UserError(f"k is {k}, and {folder} holds {store.entries} entries; k can be at most that")
    return store
