"""Dialogues as an objective reads them, on disk and memory-mapped.

A store is a folder, complete once it bears its final name. For each split:

- `SPLIT.tokens`, `SPLIT.weights`, `SPLIT.labels`: ids, weights and labels of all rows one after another, the last only
  where the objective gives labels;
- `SPLIT.ends`: for each row, int64, how many tokens stand before its successor;
- `SPLIT.values`: (dialogues, values) numbers, whose names are in `manifest.json`;
- `SPLIT.jsonl`, `SPLIT.places`: the dialogues themselves, one a line, and where each line ends.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bakeoff.data.store import ENDS, MANIFEST, mapped
from bakeoff.interfaces.dialogue import Dialogue, Turn
from bakeoff.parts.files import read_json

FORMAT = 1
NUMBERS = np.dtype("<f4")


class DialogueStore:
    """One split of a store.

    Attributes
    ----------
    rows : how many rows all dialogues have, `rows_each` each. names : of the values.
    left_out : dialogues that were too long for a row.
    """

    def __init__(self, folder: Path, split: str):
        manifest = read_json(folder / MANIFEST)
        held = manifest["splits"][split]
        self.folder, self.split = folder, split
        self.names: list[str] = manifest["values"]
        self.count: int = held["dialogues"]
        self.rows: int = held["rows"]
        self.left_out: int = held["left_out"]
        tokens = held["tokens"]
        self.tokens = mapped(folder / f"{split}.tokens", np.dtype(manifest["ids"]), tokens)
        self.weights = mapped(folder / f"{split}.weights", NUMBERS, tokens)
        self.labels = mapped(folder / f"{split}.labels", NUMBERS, tokens) if manifest["labels"] else None
        self.ends = mapped(folder / f"{split}.ends", ENDS, self.rows)
        values = mapped(folder / f"{split}.values", NUMBERS, self.count * len(self.names))
        self.values = values.reshape(self.count, len(self.names))
        self._places = mapped(folder / f"{split}.places", ENDS, self.count)

    def __len__(self) -> int:
        return self.count

    def __reduce__(self) -> tuple[Any, ...]:
        return DialogueStore, (self.folder, self.split)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, (rows,)."""
        return np.diff(self.ends, prepend=0)

    def row(self, number: int) -> slice:
        """Where a row's tokens stand."""
        return slice(int(self.ends[number - 1]) if number else 0, int(self.ends[number]))

    def dialogue(self, number: int) -> Dialogue:
        """A dialogue as the corpus gave it."""
        start = int(self._places[number - 1]) if number else 0
        with open(self.folder / f"{self.split}.jsonl", "rb") as file:
            file.seek(start)
            return read_dialogue(file.read(int(self._places[number]) - start))


def line_of(dialogue: Dialogue) -> bytes:
    """A dialogue as a line of JSON, with what is not its default."""
    plain = {
        name: value for name, value in vars(dialogue).items() if value != Dialogue.__dataclass_fields__[name].default
    }
    return json.dumps(plain, ensure_ascii=True).encode() + b"\n"


def read_dialogue(line: bytes) -> Dialogue:
    """The dialogue that `line_of` wrote."""
    plain = json.loads(line)
    plain["prompt"] = tuple(Turn(*turn) for turn in plain["prompt"])
    for name in ("steps", "step_labels"):
        plain[name] = tuple(plain.get(name, ()))
    return Dialogue(**plain)
