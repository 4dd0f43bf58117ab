"""`Data`: a corpus and a tokenizer made into batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from bakeoff.data.dialogues.reading import DialogueReading
from bakeoff.data.lanes import LaneBatches, LaneRows, ValidationLanes, refuse_short
from bakeoff.data.loading import MicroBatches, Rows, ValidationBatches, as_it_is, spread
from bakeoff.data.packing import Batch, Windows, rows
from bakeoff.data.preparing import Preparation, cache_folder
from bakeoff.data.reading import Reading, WindowReading
from bakeoff.data.retrieval import Lookup, Retrieval
from bakeoff.data.retrieval.retrieved import Retrieved
from bakeoff.data.store import TokenStore
from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import SPLITS, Corpus
from bakeoff.interfaces.objective import Objective
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Data:
    """Training and validation batches of a corpus under a tokenizer.

    Parameters
    ----------
    length : tokens that the model reads in a row.
    batch_tokens : tokens of an optimizer step, over all ranks and micro-batches; a multiple of `length`.
    micro_batch : rows that one device takes at once; None: all of its share of the step.
    isolate_documents : tell documents in a row apart, so that they do not see each other.
    workers : processes that load batches; 0: the training process does.
    cache : folder for tokenizers and token stores; None: the environment's BAKEOFF_CACHE, or ~/.cache/bakeoff.
    tokenizer_bytes : the tokenizer learns from whole documents of the train split, in order, until it has seen so many
        bytes.
    retrieval : what is looked up for the chunks of each row; None: nothing.
    template : how the turns of dialogues become ids, for objectives and tasks that read some.
    leave_out_long : dialogues that no row holds are counted and left out; else they are refused.
    """

    def __init__(
        self,
        *,
        corpus: Corpus,
        tokenizer: Tokenizer,
        length: int,
        batch_tokens: int,
        micro_batch: int | None = None,
        isolate_documents: bool = True,
        workers: int = 0,
        cache: str | None = None,
        tokenizer_bytes: int = 64 * 2**20,
        retrieval: Retrieval | None = None,
        template: Template | None = None,
        leave_out_long: bool = False,
    ):
        if length < 1:
            raise UserError(f"data.length is {length}; it must be at least 1")
        if batch_tokens < 1 or batch_tokens % length:
            nearest = _nearest(batch_tokens, length)
            raise UserError(
                f"data.batch_tokens is {batch_tokens}, no multiple of data.length, {length}; nearest: {nearest}"
            )
        if workers < 0:
            raise UserError(f"data.workers is {workers}; it must be at least 0")
        if retrieval is not None:
            retrieval.check_length(length)
        self.corpus, self.tokenizer = corpus, tokenizer
        self.length, self.batch_tokens, self.micro_batch = length, batch_tokens, micro_batch
        self.isolate_documents, self.workers, self.cache = isolate_documents, workers, cache
        self.tokenizer_bytes, self.retrieval = tokenizer_bytes, retrieval
        self.template, self.leave_out_long = template, leave_out_long
        self._stores: dict[str, TokenStore] = {}
        self._fingerprint = ""
        self._retrieved: Retrieved | None = None
        self._dialogues: Callable[[Objective], DialogueReading] | None = None

    def prepare(self, progress: bool = True) -> Data:
        """Train the tokenizer and tokenise both splits, or find in the cache what was prepared before."""
        if not self._stores:
            cache = cache_folder(self.cache)
            work = Preparation(self.corpus, cache, progress=progress)
            self.tokenizer, learnt = work.tokenizer(self.tokenizer, self.tokenizer_bytes)
            folder = work.store(self.tokenizer, learnt)
            self._fingerprint = folder.name
            self._stores = {split: TokenStore(folder, split) for split in SPLITS}
            told = (work.texts, learnt)
            self._dialogues = partial(DialogueReading, self, cache=cache, told=told, progress=progress)
            if self.retrieval is not None:
                self._retrieved = Retrieved(
                    self.retrieval,
                    corpus=self.corpus,
                    tokenizer=self.tokenizer,
                    learnt=learnt,
                    stores=self._stores,
                    length=self.length,
                    isolate=self.isolate_documents,
                    cache=cache,
                    progress=progress,
                )
        return self

    @property
    def retrieved(self) -> Retrieved:
        """What `data.retrieval` asks for; made when it is first used. `UserError` where the recipe has no such."""
        if self.retrieval is None:
            raise UserError("data.retrieval is not set, so that there is nothing to look up in")
        self.store("train")
        assert self._retrieved is not None
        return self._retrieved

    def lookup(self) -> Lookup:
        """The database of `data.retrieval`, ready to be searched."""
        return self.retrieved.lookup

    def find_neighbours(self) -> Data:
        """Find what batches will hold, now instead of when they are first drawn; nothing where none is asked for."""
        for split in SPLITS if self.retrieval else ():
            if self.retrieved.find(split) is None:
                self.lookup()
        return self

    def reading(self, objective: Objective) -> Reading:
        """The batches that an objective reads."""
        if self._dialogues is None:
            raise RuntimeError("call Data.prepare() first")
        return self._dialogues(objective) if objective.reads_dialogues else WindowReading(self, objective)

    def store(self, split: str) -> TokenStore:
        """The tokens of a split."""
        if not self._stores:
            raise RuntimeError("call Data.prepare() first")
        return self._stores[split]

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints, equal tokens, and equal neighbours where some are retrieved."""
        if not self._fingerprint:
            raise RuntimeError("call Data.prepare() first")
        return self._fingerprint + (f"-{self._retrieved.fingerprint}" if self._retrieved else "")

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def bytes_per_token(self) -> np.ndarray:
        """(V,) int32, bytes of text that each id stands for."""
        return self.tokenizer.bytes_per_token()

    @property
    def global_batch(self) -> int:
        """Rows of an optimizer step, over all ranks and micro-batches."""
        return self.batch_tokens // self.length

    def micro(self, ranks: int = 1) -> int:
        """Rows of a micro-batch on one of `ranks` ranks."""
        if self.global_batch % ranks:
            nearest = _nearest(self.batch_tokens, self.length * ranks)
            raise UserError(
                f"data.batch_tokens {self.batch_tokens} is {self.global_batch} rows of {self.length}, which do not "
                f"divide over {ranks} ranks; nearest data.batch_tokens: {nearest}"
            )
        share = self.global_batch // ranks
        micro = share if self.micro_batch is None else self.micro_batch
        if micro < 1 or share % micro:
            valid = [divisor for divisor in range(1, share + 1) if share % divisor == 0]
            below = [divisor for divisor in valid if divisor < micro][-1:]
            above = [divisor for divisor in valid if divisor > micro][:1]
            raise UserError(
                f"data.micro_batch is {micro}, but each of {ranks} ranks has {share} rows a step "
                f"(data.batch_tokens {self.batch_tokens} / data.length {self.length} / ranks {ranks}), which it does "
                f"not divide; nearest: {' or '.join(map(str, below + above))}"
            )
        return micro

    def accumulation(self, ranks: int = 1) -> int:
        """Micro-batches of an optimizer step on one of `ranks` ranks."""
        return self.global_batch // (self.micro(ranks) * ranks)

    def training(
        self,
        *,
        tokens_wanted: int,
        seed: int,
        first_step: int = 0,
        ranks: int = 1,
        rank: int = 0,
        stateful: bool = False,
    ) -> DataLoader[Batch]:
        """Micro-batches of one rank from optimizer step `first_step` on, without end.

        Each is a dict of `tokens` (B, L) long, `documents` (B, L) long or None where no row holds more than one, and
        `real`, None, and what was retrieved for them, as `bakeoff.interfaces.neighbours` names it. L is
        `tokens_wanted`. Rows start every `length` tokens, so that each token is a target once an epoch; what stands
        behind the last full row is left out. Raises `UserError` if there is no full row.

        `stateful`: each row of the global batch is a lane, whose window begins where its window of the step before
        ended. Batches then hold `fresh` as well, (B,) bool or None, True where a lane begins anew, and document ids
        wherever documents are told apart. Raises `UserError` if a lane would have fewer than two windows.
        """
        self._refuse_lanes_with_neighbours(stateful)
        windows = self._windows("train", tokens_wanted)
        if not windows.whole:
            raise UserError(self._too_short("train", windows, tokens_wanted))
        logger.info(
            "train: %d rows of %d tokens; %d of %d tokens at the end fill no row and are left out",
            windows.whole, tokens_wanted, windows.dropped, windows.tokens,
        )  # fmt: skip
        dealt = {"micro": self.micro(ranks), "first_step": first_step, "ranks": ranks, "rank": rank}
        if stateful:
            refuse_short(windows, self.global_batch)
            lanes = LaneBatches(windows=windows.whole, seed=seed, lanes=self.global_batch, **dealt)
            return self._loader("train", windows, lanes)
        if windows.whole < self.global_batch:
            logger.warning(
                "an optimizer step takes %d rows, but the train split has %d: a step sees some of them more than once",
                self.global_batch, windows.whole,
            )  # fmt: skip
        batches = MicroBatches(windows=windows.whole, seed=seed, global_batch=self.global_batch, **dealt)
        return self._loader("train", windows, batches)

    def validation(
        self,
        *,
        tokens_wanted: int,
        tokens: int | None = None,
        ranks: int = 1,
        rank: int = 0,
        batch: int | None = None,
        stateful: bool = False,
    ) -> DataLoader[Batch]:
        """The validation split in order, each row once over all ranks, in batches of `batch` (default: a micro-batch).

        Batches are those of `training`, with `real` (B, L) bool, False behind the end of the split, in the last, and in
        rows of nothing but padding that give each rank equally many batches. `tokens` limits the rows to about so many
        tokens, evenly spread over the split. Raises `UserError` if the split is too short.

        `stateful`: the rows of consecutive batches are consecutive windows, but for those that `fresh` names, as in
        `training`; each of the lanes starts somewhere in the split with an empty state.
        """
        self._refuse_lanes_with_neighbours(stateful)
        windows = self._windows("validation", tokens_wanted)
        if not windows.all:
            raise UserError(self._too_short("validation", windows, tokens_wanted - self.length + 1))
        if tokens is not None and tokens < 1:
            raise UserError(f"validation.tokens is {tokens}; it must be at least 1, or null for the whole split")
        wanted = windows.all if tokens is None else -(-tokens // self.length)
        dealt = {"batch": batch or self.micro(ranks), "ranks": ranks, "rank": rank}
        if stateful:
            lanes = ValidationLanes(windows.all, wanted, most=self.global_batch, **dealt)
            return self._loader("validation", windows, lanes)
        return self._loader("validation", windows, ValidationBatches(spread(windows.all, wanted), **dealt))

    def rows(self, split: str, starts: np.ndarray, *, length: int, wanted: int) -> Batch:
        """A batch of rows of any `length` that begin anywhere in a split, `wanted` tokens each with those ahead.

        Their chunks are looked up as it is called, whatever was found ahead.
        """
        store = self.store(split)
        batch = rows(store, starts, wanted, isolate=self.isolate_documents, padding=self.tokenizer.padding)
        return batch if self.retrieval is None else {**batch, **self.retrieved.of(store, starts, length)}

    def _windows(self, split: str, tokens_wanted: int) -> Windows:
        return Windows(len(self.store(split).tokens), self.length, tokens_wanted)

    def _loader(self, split: str, windows: Windows, batches: Sampler[Any]) -> DataLoader[Batch]:
        in_lanes = isinstance(batches, (LaneBatches, ValidationLanes))
        told = {"isolate": self.isolate_documents, "always": in_lanes}
        plain = Rows(self.store(split), windows, padding=self.tokenizer.padding, **told)
        with_neighbours = plain if self.retrieval is None else self.retrieved.rows(plain)
        return DataLoader(
            LaneRows(plain) if in_lanes else with_neighbours,
            batch_sampler=batches,
            num_workers=self.workers,
            collate_fn=as_it_is,
            pin_memory=torch.cuda.is_available(),
        )

    def _refuse_lanes_with_neighbours(self, stateful: bool) -> None:
        if stateful and self.retrieval is not None:
            raise UserError(
                "trainer.stateful: true with data.retrieval: chunks count from a row's first token, and the rows of "
                "lanes go on from others; set trainer.stateful: false, or leave data.retrieval out"
            )

    def _too_short(self, split: str, windows: Windows, needed: int) -> str:
        longest = windows.tokens - (windows.wanted - windows.length)
        advice = f"or set data.length to at most {longest}" if split == "train" and longest > 0 else ""
        return (
            f"the {split} split holds {windows.tokens} tokens in {len(self.store(split).ends)} documents, "
            f"but one row takes {needed} (data.length {self.length}); give the corpus more text {advice}".rstrip()
        )


def _nearest(number: int, unit: int) -> str:
    below = number // unit * unit
    return " or ".join(str(candidate) for candidate in (below, below + unit) if candidate > 0)
