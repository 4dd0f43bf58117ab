"""The most memory that something takes while it runs."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from bakeoff.model.memory import Live

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def peak_bytes(run: Callable[[], object], device: torch.device, held: Any = ()) -> tuple[float, str]:
    """`(bytes, what they are)` at the peak of `run`; `held` is a nest of the tensors that stand before it.

    "allocated": by tensors on a CUDA device. "resident": of the whole process, libraries and all, on Linux, where the
    kernel lets the high-water mark be reset. "tensors": elsewhere, those held and those that come into being.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return float(torch.cuda.max_memory_allocated(device)), "allocated"
    if reset_high_water():
        run()
        return float(high_water()), "resident"
    with Live() as live:
        live.note(held)
        run()
    return float(live.peak), "tensors"


def reset_high_water() -> bool:
    """Give freed memory back to the system and set the process's high-water mark to what it holds now."""
    with suppress(AttributeError, OSError):  # other than with glibc, what was freed may stay counted
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5")
        return high_water() > 0
    except (OSError, ValueError):
        return False


def high_water() -> int:
    """Most bytes that this process has held resident since the mark was reset. Raises `ValueError` if not told."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{_STATUS} names no VmHWM")
