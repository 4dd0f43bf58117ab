"""A datastore, made by going through a training split in order; one that was killed goes on."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Tokenizer
from bakeoff.parts.files import file_hash, read_sealed, seal, sync_folder, write_sealed, writing
from torch import Tensor, nn

from bakeoff_retro.knn.datastore import FORMAT, IDS, KEYS, MANIFEST, TYPES, VALUES, Datastore, fingerprint
from bakeoff_retro.knn.head import plain_weights

#: End of the name of a datastore that is not whole, and the file in it that says how far it is.
UNFINISHED, REACHED = ".unfinished", "reached.json"
#: Batches after which a datastore that is killed goes on at the latest.
BATCHES = 16


class Entries(NamedTuple):
    """States (n, D) from which tokens (n,) long were predicted."""

    states: Tensor
    tokens: Tensor


class Source:
    """The train split of a run as its objective cuts it: what is a target is an entry.

    Parameters
    ----------
    tokens : about how many, in rows that are evenly spread over the split; None: all of it.
    """

    def __init__(self, run: Any, *, tokens: int | None = None):
        if tokens is not None and tokens < 1:
            raise UserError(f"tokens is {tokens}; it must be at least 1")
        self.model, self.data = run.model.eval(), run.data
        data, micro = self.data, self.data.micro()
        self.objective = run.recipe.build("objective").eval()
        self.ahead = self.objective.tokens_wanted(data.length) - data.length
        count = max(0, -(-(len(data.store("train").tokens) - self.ahead) // data.length))
        if not count:
            raise UserError(f"{run.folder}: its train split has no token to predict, so that nothing would be stored")
        wanted = count if tokens is None else min(count, -(-tokens // data.length))
        self.numbers = np.split(np.arange(wanted) * count // wanted, range(micro, wanted, micro))
        """Of the rows, batch by batch."""
        self.targets = wanted * data.length
        """About how many there are."""
        self.width, self.vocab_size = run.model.context.d_model, data.vocab_size
        weights = plain_weights(run.model)
        self.made_with = {
            "model": fingerprint(weights),
            "head": fingerprint({name.removeprefix("head."): weights[name] for name in weights if name[:5] == "head."}),
            "tokenizer": _tokenizer(run.tokenizer),
            "data": data.fingerprint,
            "objective": repr(run.recipe.full["objective"]),
            "rows": [wanted, data.length, micro],
        }
        if _tokenizer(data.tokenizer) != self.made_with["tokenizer"]:
            raise UserError(f"{run.folder}: its data, prepared anew, give another tokenizer; its corpus has changed")

    def entries(self, first: int = 0) -> Iterator[Entries]:
        """Of each batch, from number `first` on."""
        device = self.model.backbone.embedding.device
        length = self.data.length
        for numbers in self.numbers[first:]:
            batch = self.data.rows("train", numbers * length, length=length, wanted=length + self.ahead)
            moved = {name: None if value is None else value.to(device) for name, value in batch.items()}
            with torch.no_grad(), _given(self.model.head) as given:
                losses = self.objective.token_losses(self.model, moved)
            real = losses.weights != 0
            yield Entries(given[-1][real].cpu(), losses.targets[real].cpu())


def build(source: Source, folder: Path, *, kind: str = "float16", tell: Callable[[int], None]) -> Datastore:
    """Write the datastore; `tell` hears how many entries there are so far.

    Memory does not grow with the entries. Raises `UserError` where the folder is in use, or holds an unfinished
    datastore of something else, which it names.
    """
    if kind not in TYPES:
        raise UserError(f"keys of type {kind}; they can be {' or '.join(TYPES)}")
    partial = folder.with_name(f"{folder.name}{UNFINISHED}")
    with writing(partial), _alone(partial):
        if folder.exists():
            raise UserError(f"{folder} is there already; give another folder, or remove it")
        return _built(source, folder, partial, kind, tell)


def _built(source: Source, folder: Path, partial: Path, kind: str, tell: Callable[[int], None]) -> Datastore:
    made_with = {**source.made_with, "type": kind}
    batches, entries = _reached(partial, made_with)
    bytes_of = {KEYS: TYPES[kind].itemsize * source.width, VALUES: IDS.itemsize}
    with _open(partial, {name: entries * size for name, size in bytes_of.items()}) as files:
        for done, found in enumerate(source.entries(batches), batches + 1):
            _write(files, found, kind, folder)
            entries += len(found.tokens)
            if done % BATCHES == 0:
                _note(partial, files, {"made_with": made_with, "batches": done, "entries": entries})
            tell(entries)
        _note(partial, files, {"made_with": made_with, "batches": len(source.numbers), "entries": entries})
    if not entries:
        raise UserError(f"the train split has no token that the run's objective predicts: {folder} would be empty")
    sizes = {"entries": entries, "width": source.width, "vocab_size": source.vocab_size, "type": kind}
    write_sealed(partial / MANIFEST, {"format": FORMAT, **source.made_with, **sizes})
    (partial / REACHED).unlink()
    os.replace(partial, folder)
    sync_folder(folder.parent)
    return Datastore(folder)


def opened(folder: Path, run: Any) -> Datastore:
    """The datastore in a folder, that of the run; else `UserError`."""
    made = Datastore(folder)
    if made.model != fingerprint(plain_weights(run.model)):
        raise UserError(f"{folder} is the datastore of other weights than those of {run.folder}")
    return made


@contextmanager
def _alone(partial: Path) -> Iterator[None]:
    """Hold a folder, made if need be, against other processes; it goes again if nothing is written into it."""
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"another process writes {partial}; wait until it ends") from None
    finally:
        os.close(descriptor)
        with suppress(OSError):
            partial.rmdir()


@contextmanager
def _given(head: nn.Module) -> Iterator[list[Tensor]]:
    """The hidden states (B, T, D) of each call of the head inside."""
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        hook.remove()


def _reached(partial: Path, made_with: dict[str, Any]) -> tuple[int, int]:
    """Batches and entries that an unfinished datastore of the same holds."""
    if not (partial / REACHED).exists():
        return 0, 0
    held = read_sealed(partial / REACHED)
    unlike = [name for name, value in made_with.items() if held["made_with"].get(name) != value]
    if unlike:
        raise UserError(
            f"{partial} is the beginning of another datastore: {', '.join(unlike)} differ; remove it, or give another "
            "folder"
        )
    return held["batches"], held["entries"]


@contextmanager
def _open(partial: Path, sizes: dict[str, int]) -> Iterator[dict[str, BinaryIO]]:
    """The files, cut to the bytes that count, to be continued."""
    files: dict[str, BinaryIO] = {}
    try:
        for name, size in sizes.items():
            files[name] = open(partial / name, "ab")  # noqa: SIM115
            if files[name].tell() < size:
                raise UserError(f"{partial / name} is damaged: it is cut short; remove {partial}")
            files[name].truncate(size)
        yield files
    finally:
        for file in files.values():
            file.close()


def _write(files: dict[str, BinaryIO], found: Entries, kind: str, folder: Path) -> None:
    keys = found.states.to(getattr(torch, kind))
    if not keys.isfinite().all():
        raise UserError(f"{folder}: a hidden state is no finite {kind}; keep keys as --type float32, or train anew")
    files[KEYS].write(keys.numpy().astype(TYPES[kind], copy=False).tobytes())
    files[VALUES].write(found.tokens.numpy().astype(IDS).tobytes())


def _note(partial: Path, files: dict[str, BinaryIO], reached: dict[str, Any]) -> None:
    """What stands in the files lasts from here on."""
    for file in files.values():
        file.flush()
        os.fsync(file.fileno())
    write_sealed(partial / REACHED, reached)


def _tokenizer(tokenizer: Tokenizer) -> str:
    """A hash of what it saves."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        files = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*") if path.is_file()}
        return seal({name: file_hash(path) for name, path in files.items()})
