"""Checkpoints written behind the training that goes on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from bakeoff.parallel.checkpoints import write
from bakeoff.parallel.pieces import Piece


class Writer:
    """Copies what is to be kept to the CPU, and writes it in a thread of its own.

    Parameters
    ----------
    group : gloo, of all ranks, for the writer alone: exchanges of one group must not cross those of the training. None
        only where there are no other ranks.
    """

    def __init__(self, group: ProcessGroup | None):
        self.group = group
        self._buffers: dict[str, Tensor] = {}
        self._thread: Thread | None = None
        self._failed: Exception | None = None

    def save(
        self,
        tensors: Mapping[str, Piece],
        plain: Mapping[str, Any],
        folder: Path,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to write a checkpoint, as `bakeoff.parallel.checkpoints.write` does; all ranks call it.

        Returns as soon as the values are copied, so that training may change them. A second call waits for the first,
        and raises what failed there. The first rank calls `done` in the writing thread when the checkpoint stands.
        """
        self.wait()
        staged = self._staged(tensors)
        kept = copy.deepcopy(dict(plain))
        self._thread = Thread(target=self._write, args=(staged, kept, folder, done), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written; raises, once, what failed: a `UserError` if the disk is full."""
        if self._thread is not None:
            self._thread.join()
        failed, self._thread, self._failed = self._failed, None, None
        if failed is not None:
            raise failed

    def _write(
        self, staged: Mapping[str, Piece], plain: Mapping[str, Any], folder: Path, done: Callable[[], None]
    ) -> None:
        try:
            write(staged, folder, group=self.group, plain=plain)
            if self.group is None or distributed.get_rank(self.group) == 0:
                done()
        except Exception as error:
            self._failed = error

    def _staged(self, tensors: Mapping[str, Piece]) -> dict[str, Piece]:
        """The pieces with their values on the CPU, in memory that is kept for the next time."""
        before, self._buffers = self._buffers, {}
        for name, piece in tensors.items():
            local, buffer = piece.local, before.get(name)
            if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
                buffer = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
            self._buffers[name] = buffer.copy_(local, non_blocking=True)
        if any(piece.local.is_cuda for piece in tensors.values()):
            torch.cuda.current_stream().synchronize()
        return {name: replace(piece, local=self._buffers[name]) for name, piece in tensors.items()}
