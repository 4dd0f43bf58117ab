"""Corpus `huggingface_dataset`: a dataset that the library `datasets` can load, streamed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from bakeoff.errors import MissingExtra, UserError
from bakeoff.parts.corpora.splitting import DealtCorpus, document_hash, known_split


class HuggingFaceDataset(DealtCorpus):
    """One document a row; rows are streamed, never held as a whole. Needs the extra `hf`.

    Where the dataset has a split for validation, its rows are validation, and training rows that equal one of them are
    left out. Else about the share `validation` of the rows of `split` is held out, chosen by a hash of text and `seed`.

    Parameters
    ----------
    path : name of a dataset on the hub, or a local folder.
    name : of the dataset's configuration.
    split : of the dataset, that training reads.
    validation_split : of the dataset, that validation reads; None: a share of `split`.
    field : which column holds the text.
    revision : commit, tag or branch of the dataset on the hub.
    """

    def __init__(
        self,
        *,
        path: str,
        name: str | None = None,
        split: str = "train",
        validation_split: str | None = None,
        field: str = "text",
        revision: str | None = None,
        validation: float = 0.1,
        seed: int = 0,
    ):
        super().__init__(validation, seed)
        if find_spec("datasets") is None:
            raise MissingExtra("corpus 'huggingface_dataset'", "hf")
        if validation_split == split:
            raise UserError(f"corpus 'huggingface_dataset': split and validation_split are both '{split}'")
        self.path, self.name, self.revision = path, name, revision
        self.split, self.validation_split, self.field = split, validation_split, field

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """None: it needs data from elsewhere."""
        return []

    def texts(self) -> Iterator[str]:
        return self._rows(self.split)

    def documents(self, split: str) -> Iterator[str]:
        if self.validation_split is None:
            return super().documents(split)
        if known_split(split) == "validation":
            return self._rows(self.validation_split)
        return (text for text in self.texts() if document_hash(text, self.seed) not in self._held_out)

    def fingerprint(self) -> str:
        source = [self.path, self.name, self._builder.hash]
        chosen = [self.split, self.validation_split, self.field, self.validation, self.seed]
        return hashlib.sha256(repr(["huggingface_dataset", *source, *chosen]).encode()).hexdigest()

    @property
    def licence(self) -> str:
        return self._builder.info.license or f"not stated by the dataset '{self.path}'"

    @cached_property
    def _builder(self) -> Any:
        from datasets import load_dataset_builder

        try:
            return load_dataset_builder(self.path, self.name, revision=self.revision)
        except (OSError, ValueError) as error:  # not found, not reached, no such configuration
            raise UserError(f"corpus 'huggingface_dataset': cannot load '{self.path}': {error}") from error

    @cached_property
    def _held_out(self) -> set[int]:
        assert self.validation_split is not None
        return {document_hash(text, self.seed) for text in self._rows(self.validation_split)}

    def _rows(self, split: str) -> Iterator[str]:
        try:
            stream = self._builder.as_streaming_dataset(split=split)
        except ValueError as error:
            raise UserError(f"corpus 'huggingface_dataset': '{self.path}': {error}") from error
        for number, row in enumerate(stream):
            text = row.get(self.field)
            if not isinstance(text, str):
                raise UserError(
                    f"corpus 'huggingface_dataset': row {number} of split '{split}' of '{self.path}' holds no text in "
                    f"'{self.field}'; its fields: {', '.join(row)}"
                )
            yield text
