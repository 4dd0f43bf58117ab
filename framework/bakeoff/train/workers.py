"""Processes that load batches must not outlive the one that trains."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

_PR_SET_PDEATHSIG = 1


def follow_parent(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Let the loader's workers end as soon as this process does, however it ends; returns the loader.

    Left alone they look every few seconds whether their parent is there, and never notice one that was killed before
    they first looked.
    """
    if loader.num_workers and multiprocessing.get_start_method() != "forkserver":
        loader.worker_init_fn = partial(_follow, os.getpid())
    return loader


def _follow(parent: int, worker: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
