"""Batches of dialogues: what PyTorch's DataLoader is given where an objective reads them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bakeoff.data.dialogues.packing import Packed
from bakeoff.data.dialogues.store import DialogueStore
from bakeoff.data.packing import Batch

#: Rows of a batch end at a multiple of so many tokens, or where the longest may end.
STEP = 8


class DialogueRows(Dataset[Batch]):
    """Rows by number of their dialogue; a list of numbers gives a whole batch, -1 rows of nothing but padding.

    Rows are padded on the right to the longest of their batch.

    Parameters
    ----------
    each : rows of a dialogue. most : tokens that a row may have. packed : which dialogues share a row, whose numbers
        are then what is asked for; None: none do.
    """

    def __init__(self, store: DialogueStore, *, each: int, most: int, padding: int, packed: Packed | None):
        self.store, self.each, self.most, self.padding, self.packed = store, each, most, padding, packed

    def __len__(self) -> int:
        return len(self.store) if self.packed is None else len(self.packed.ends)

    def __getitem__(self, number: int) -> Batch:
        return self.__getitems__([number])

    def __getitems__(self, numbers: list[int]) -> Batch:
        batch = self._laid([row for number in numbers for row in self._rows(number)])
        for place, name in enumerate(self.store.names):
            batch[name] = torch.tensor([float(self.store.values[n, place]) if n >= 0 else 0.0 for n in numbers])
        return batch

    def _rows(self, number: int) -> list[list[slice]]:
        """Where the tokens of each row of a dialogue stand, or of all dialogues that are packed into row `number`."""
        if number < 0:
            return [[]] * self.each
        if self.packed is None:
            return [[self.store.row(number * self.each + place)] for place in range(self.each)]
        start = int(self.packed.ends[number - 1]) if number else 0
        return [[self.store.row(int(row)) for row in self.packed.order[start : int(self.packed.ends[number])]]]

    def _laid(self, rows: list[list[slice]]) -> Batch:
        store = self.store
        longest = max(sum(part.stop - part.start for part in row) for row in rows)
        L = min(self.most, max(2, -(-longest // STEP) * STEP))
        tokens = np.full((len(rows), L), self.padding, dtype=np.int64)
        weights = np.zeros((len(rows), L), dtype=np.float32)
        labels = np.full((len(rows), L), np.nan, dtype=np.float32) if store.labels is not None else None
        documents, real = np.zeros_like(tokens), np.zeros(tokens.shape, dtype=bool)
        for row, parts in enumerate(rows):
            start = 0
            for number, part in enumerate(parts):
                place = slice(start, start + part.stop - part.start)
                tokens[row, place], weights[row, place] = store.tokens[part], store.weights[part]
                if labels is not None and store.labels is not None:
                    labels[row, place] = store.labels[part]
                real[row, place], documents[row, place.start :] = True, number
                start = place.stop
        batch: Batch = {"tokens": torch.from_numpy(tokens), "weights": torch.from_numpy(weights)}
        batch["documents"] = torch.from_numpy(documents) if self.packed is not None else None
        batch["real"] = None if real.all() else torch.from_numpy(real)
        return batch if labels is None else {**batch, "labels": torch.from_numpy(labels)}


class RowNumbers(Dataset[Batch]):
    """The numbers that were asked for, as `rows`: for objectives that hold their rows themselves."""

    def __getitem__(self, number: int) -> Batch:
        return self.__getitems__([number])

    def __getitems__(self, numbers: list[int]) -> Batch:
        return {"rows": torch.tensor(numbers)}


def chosen(collection: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Rows of a collection, cut behind the longest of them."""
    held = {name: tensor[rows] for name, tensor in collection.items()}
    shape, real = held["tokens"].shape, held["real"]
    L = min(shape[1], max(2, -(-int(real.sum(1).max()) // STEP) * STEP))
    return {name: tensor[:, :L] if tensor.shape[:2] == shape else tensor for name, tensor in held.items()}
