"""Dialogues of a corpus as an objective reads them: prepared once, and made into batches."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from bakeoff.data.dialogues.batches import DialogueRows, RowNumbers
from bakeoff.data.dialogues.packing import pack
from bakeoff.data.dialogues.store import FORMAT, DialogueStore
from bakeoff.data.dialogues.writing import DialogueWriter, said_of
from bakeoff.data.loading import MicroBatches, ValidationBatches, as_it_is, spread
from bakeoff.data.locking import locked
from bakeoff.data.packing import Batch
from bakeoff.data.preparing import key_of, writing_cache
from bakeoff.data.progress import Bar
from bakeoff.errors import UserError
from bakeoff.interfaces.objective import Objective
from bakeoff.interfaces.template import Template

if TYPE_CHECKING:
    from bakeoff.data.data import Data

logger = logging.getLogger(__name__)


class DialogueReading:
    """Dialogues under a template, or, for an objective that collects, the numbers of the rows that it holds.

    An optimizer step takes `data.batch_tokens` / `data.length` rows, as with text, however long they are.

    Parameters
    ----------
    told : what the texts and the tokenizer are, as hashes.
    """

    def __init__(self, data: Data, objective: Objective, *, cache: Path, told: tuple[str, ...], progress: bool):
        self.data, self.objective, self.template = data, objective, template_of(data, objective)
        self.most = objective.tokens_wanted(data.length)
        self.cache, self.told, self.progress = cache, told, progress
        self._stores: dict[str, DialogueStore] = {}

    @cached_property
    def folder(self) -> Path:
        """Where the encoded dialogues stand; made when it is first asked for."""
        said = said_of(self.template), said_of(self.objective)
        key = key_of(FORMAT, *self.told, *said, self.most, self.data.leave_out_long)
        folder = self.cache / "dialogues" / key
        if not folder.is_dir():
            with writing_cache(folder), locked(folder.with_suffix(".lock"), f"dialogues {key}"):
                if not folder.is_dir():
                    self._write(folder)
        return folder

    def _write(self, folder: Path) -> None:
        data = self.data
        writer = DialogueWriter(
            self.objective, self.template, data.tokenizer, most=self.most, leave_out=data.leave_out_long
        )
        with Bar("encoding dialogues", data.corpus.size(), show=self.progress) as bar:
            writer.write(data.corpus, folder, {"licence": data.corpus.licence}, bar)

    def store(self, split: str) -> DialogueStore:
        """The dialogues of a split; `UserError` where there are none."""
        if split not in self._stores:
            store = DialogueStore(self.folder, split)
            if not len(store):
                left = f"; {store.left_out:,} were longer than a row and left out" if store.left_out else ""
                raise UserError(f"the {split} split of the corpus has no dialogue{left}")
            if store.left_out:
                logger.warning("%s: %s of %s dialogues are longer than a row of %s tokens and left out", split,
                               f"{store.left_out:,}", f"{store.left_out + len(store):,}", self.most)  # fmt: skip
            self._stores[split] = store
        return self._stores[split]

    def dataset(self, split: str) -> DialogueRows:
        """Rows of a split by number."""
        store = self.store(split)
        packed = pack(store.lengths, self.most) if self.objective.packs else None
        if packed is not None:
            logger.info("%s: %d dialogues in %d rows, %.1f %% of whose places are filled", split, len(store),
                        len(packed.ends), 100 * packed.fill(store.lengths, self.most))  # fmt: skip
        told = {"each": self.objective.rows_each, "most": self.most, "padding": self.data.tokenizer.padding}
        return DialogueRows(store, packed=packed, **told)

    def training(
        self, *, seed: int, first_step: int = 0, ranks: int = 1, rank: int = 0, stateful: bool = False
    ) -> DataLoader[Batch]:
        """Micro-batches of one rank from optimizer step `first_step` on, without end; each of whole dialogues."""
        _refuse(stateful)
        dealt = {"first_step": first_step, "ranks": ranks, "rank": rank, "seed": seed}
        objective: Any = self.objective
        if objective.collects:
            size = self.data.global_batch * objective.updates
            return self._loader(RowNumbers(), self._dealt(1, windows=size, **dealt))
        rows = self.dataset("train")
        batches = self._dealt(objective.rows_each, windows=len(rows), **dealt)
        if len(rows) < batches.global_batch:
            logger.warning("an optimizer step takes %d dialogues, but the train split has %d: a step sees some of them "
                           "more than once", batches.global_batch, len(rows))  # fmt: skip
        return self._loader(rows, batches)

    def _dealt(self, each: int, **told: Any) -> MicroBatches:
        """Numbers of one rank's micro-batches, where each number takes `each` rows."""
        rows, micro = self.data.global_batch, self.data.micro(told["ranks"])
        for name, number in (("data.batch_tokens / data.length", rows), ("the rows of a micro-batch", micro)):
            if number % each:
                raise UserError(
                    f"{name}: {number} rows, but {type(self.objective).__name__} takes {each} rows a dialogue: write a "
                    f"multiple of {each}"
                )
        return MicroBatches(global_batch=rows // each, micro=micro // each, **told)

    def validation(
        self, *, tokens: int | None = None, ranks: int = 1, rank: int = 0, stateful: bool = False
    ) -> DataLoader[Batch]:
        """The validation split in order, each dialogue once over all ranks; `real` is False in rows that fill up.

        `tokens` limits the rows to about so many tokens' worth of full ones.
        """
        _refuse(stateful)
        rows, each = self.dataset("validation"), self.objective.rows_each
        if tokens is not None and tokens < 1:
            raise UserError(f"validation.tokens is {tokens}; it must be at least 1, or null for the whole split")
        wanted = len(rows) if tokens is None else -(-tokens // (self.data.length * each))
        batch = max(1, self.data.micro(ranks) // each)
        return self._loader(rows, ValidationBatches(spread(len(rows), wanted), batch=batch, ranks=ranks, rank=rank))

    def _loader(self, rows: Dataset[Batch], batches: Sampler[Any]) -> DataLoader[Batch]:
        return DataLoader(
            rows,
            batch_sampler=batches,
            num_workers=self.data.workers,
            collate_fn=as_it_is,
            pin_memory=torch.cuda.is_available(),
        )


def template_of(data: Data, objective: Objective) -> Template:
    """The template of the data; `UserError` where there is none."""
    if data.template is None:
        raise UserError(
            f"{type(objective).__name__} reads dialogues, and data.template does not say how their turns become ids: "
            "write data: {template: {use: chat}}, or {use: plain}"
        )
    return data.template


def _refuse(stateful: bool) -> None:
    if stateful:
        raise UserError("trainer.stateful: true, but dialogues are no text that goes on: set trainer.stateful: false")
