"""A datastore: what a model's hidden states were before each token of a text, and which token came.

It is a folder, complete once it bears its final name:

- `manifest.json`, sealed: format, sizes, and fingerprints of what the states were computed with;
- `keys`: (n, D) float16 or float32, little-endian, the state from which each token was predicted;
- `values`: (n,) int32, little-endian, the tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bakeoff.errors import UserError
from bakeoff.parts.files import read_sealed
from torch import Tensor

FORMAT = 1
MANIFEST, KEYS, VALUES = "manifest.json", "keys", "values"
#: Types that keys can have, by name.
TYPES: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}
IDS = np.dtype("<i4")


class Datastore:
    """A finished datastore, memory-mapped.

    Attributes
    ----------
    entries, width, vocab_size : n, D and V. head, model : fingerprints of the weights of the head, and of all.

    Raises `UserError` where the folder holds none, or a file is cut short.
    """

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise UserError(
                f"{folder}: there is no such datastore; make it first: bakeoff datastore RUN --folder {folder}"
            )
        manifest = read_sealed(folder / MANIFEST)
        if manifest.get("format") != FORMAT:
            raise UserError(f"{folder} has format {manifest.get('format')}, and this version reads {FORMAT}")
        self.folder = folder
        self.entries: int = manifest["entries"]
        self.width: int = manifest["width"]
        self.vocab_size: int = manifest["vocab_size"]
        self.head: str = manifest["head"]
        self.model: str = manifest["model"]
        self._type = TYPES[manifest["type"]]
        self._check_size(KEYS, self.entries * self.width * self._type.itemsize)
        self._check_size(VALUES, self.entries * IDS.itemsize)
        self._on: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Datastore, (self.folder,)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Keys (n, D) and values (n,) int32: on a CPU read from disk as they are needed, elsewhere kept in memory."""
        if device not in self._on:
            keys = _mapped(self.folder / KEYS, self._type, (self.entries, self.width))
            values = _mapped(self.folder / VALUES, IDS, (self.entries,))
            self._on[device] = (keys.to(device), values.to(device))
        return self._on[device]

    def _check_size(self, name: str, wanted: int) -> None:
        path = self.folder / name
        found = path.stat().st_size if path.is_file() else 0
        if found != wanted:
            raise UserError(f"{path} is damaged: it holds {found:,} of {wanted:,} bytes")


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of named weights, rounded to bfloat16: the same in each precision that a model is evaluated in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def _mapped(path: Path, kind: np.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.memmap(path, dtype=kind, mode="c", shape=shape))
