"""Dialogues -> store: encoded by an objective under a template, in fixed memory, whole or not there."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.data.dialogues.store import FORMAT, NUMBERS, line_of
from bakeoff.data.progress import Bar
from bakeoff.data.store import ENDS, MANIFEST, id_type
from bakeoff.errors import UserError
from bakeoff.interfaces.corpus import SPLITS, Corpus
from bakeoff.interfaces.dialogue import Dialogue, Encoded
from bakeoff.interfaces.objective import Objective
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.files import file_hash, sync_folder, write_json

#: Kinds of attributes that decide what a template or an objective makes of a dialogue.
_PLAIN = (str, int, float, bool, type(None), tuple, list, dict)


class DialogueWriter:
    """Encodes and checks dialogues.

    Parameters
    ----------
    most : tokens that a row may have. leave_out : dialogues with longer rows are counted and left out; else refused.
    """

    def __init__(self, objective: Objective, template: Template, tokenizer: Tokenizer, *, most: int, leave_out: bool):
        self.objective, self.template, self.tokenizer = objective, template, tokenizer
        self.most, self.leave_out = most, leave_out
        self.names: list[str] | None = None
        self.labelled: bool | None = None

    def write(self, corpus: Corpus, folder: Path, about: dict[str, Any], bar: Bar) -> None:
        """Both splits into `folder`, which bears its name only once it is whole."""
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        splits = {split: self._split(corpus, partial, split, bar) for split in SPLITS}
        told = {"format": FORMAT, "ids": id_type(self.tokenizer.vocab_size).str, "values": self.names or []}
        write_json(partial / MANIFEST, {**told, "labels": bool(self.labelled), "splits": splits, **about})
        sync_folder(partial)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
        sync_folder(folder.parent)

    def _split(self, corpus: Corpus, folder: Path, split: str, bar: Bar) -> dict[str, int]:
        held = {"dialogues": 0, "rows": 0, "tokens": 0, "left_out": 0}
        parts = ("tokens", "weights", "labels", "ends", "values", "jsonl", "places")
        with ExitStack() as stack:
            files = {part: stack.enter_context(open(folder / f"{split}.{part}", "wb")) for part in parts}
            for number, dialogue in enumerate(_dialogues(corpus, split)):
                line = line_of(dialogue)
                bar.advance(len(line))
                encoded = self._encoded(dialogue, split, number)
                if encoded is None:
                    held["left_out"] += 1
                    continue
                for tokens, weights, labels in encoded.rows:
                    files["tokens"].write(np.asarray(tokens, id_type(self.tokenizer.vocab_size)).data)
                    files["weights"].write(np.asarray(weights, NUMBERS).data)
                    if labels is not None:
                        files["labels"].write(np.asarray(labels, NUMBERS).data)
                    held["tokens"] += len(tokens)
                    held["rows"] += 1
                    files["ends"].write(np.asarray(held["tokens"], ENDS).tobytes())
                files["values"].write(np.asarray([encoded.values[name] for name in self.names or []], NUMBERS).data)
                files["jsonl"].write(line)
                files["places"].write(np.asarray(files["jsonl"].tell(), ENDS).tobytes())
                held["dialogues"] += 1
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        return held

    def _encoded(self, dialogue: Dialogue, split: str, number: int) -> Encoded | None:
        """The rows of a dialogue; None where it is left out."""
        where = f"dialogue {number} of the {split} split"
        try:
            encoded = self.objective.encode(dialogue, self.template, self.tokenizer)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        self._check(encoded)
        longest = max(len(row.tokens) for row in encoded.rows)
        if longest <= self.most:
            return encoded
        if self.leave_out:
            return None
        raise UserError(
            f"{where} has {longest} tokens, and a row holds {self.most}: set data.length higher by at least "
            f"{longest - self.most}, or data.leave_out_long: true to leave out such dialogues"
        )

    def _check(self, encoded: Encoded) -> None:
        """What the class promises; a slip is the author's of an objective."""
        if len(encoded.rows) != self.objective.rows_each:
            raise ValueError(f"encode gave {len(encoded.rows)} rows where rows_each is {self.objective.rows_each}")
        names, labelled = sorted(encoded.values), encoded.rows[0].labels is not None
        if self.names is None:
            self.names, self.labelled = names, labelled
        if names != self.names or any((row.labels is not None) != self.labelled for row in encoded.rows):
            raise ValueError("encode must give the same values, and labels for all rows or none")
        for tokens, *others in encoded.rows:
            if any(other is not None and len(other) != len(tokens) for other in others):
                raise ValueError("encode must give as many weights and labels as tokens")


def _dialogues(corpus: Corpus, split: str) -> Iterator[Dialogue]:
    """The dialogues of a split; a source that cannot be read is the user's to mend."""
    try:
        yield from corpus.dialogues(split)
    except OSError as error:
        raise UserError(f"reading the {split} split of the corpus failed: {type(error).__name__}: {error}") from error


def said_of(part: Any) -> str:
    """All that decides what a template or an objective makes of a dialogue: its class, code and plain arguments."""
    cls = type(part)
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] not in ("abc", "builtins", "torch")]
    code = [file_hash(Path(source)) for source in map(inspect.getsourcefile, ours) if source]
    plain = {name: value for name, value in vars(part).items() if isinstance(value, _PLAIN) and name[0] != "_"}
    told = repr(sorted((name, repr(value)) for name, value in plain.items()))
    return hashlib.sha256(f"{cls.__module__}:{cls.__qualname__}\n{code}\n{told}".encode()).hexdigest()
