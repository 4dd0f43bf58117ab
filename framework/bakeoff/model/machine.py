"""What this machine can do: measured in a fraction of a second, beside what its makers promise."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from bakeoff.model.devices import ACCELERATORS

CPUINFO = Path("/proc/cpuinfo")

#: Vector unit -> float32 operations a cycle and core: two fused multiply-add units, two operations a lane.
_PER_CYCLE = {"avx512f": 64, "fma": 32, "avx": 16, "asimd": 16, "sse2": 8}


class Promise(NamedTuple):
    """What a device should reach: operations and bytes a second (None: not known), and where that is from."""

    flops: float | None
    bandwidth: float | None
    source: str


def measured_peak(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> float:
    """Operations a second of the best square matrix product, with the threads that torch uses now.

    Measured once a process, device, type and number of threads, in about 0.2 seconds.
    """
    return _peak(torch.device(device), dtype, torch.get_num_threads())


def measured_bandwidth(device: torch.device | str = "cpu") -> float:
    """Bytes a second that a sum over a tensor larger than the caches reads; measured once, in about 0.2 seconds."""
    return _bandwidth(torch.device(device), torch.get_num_threads())


def best_time(run: Callable[[], object], device: torch.device, seconds: float = 0.2) -> float:
    """Shortest time of one `run`, in seconds, over as many as fit into `seconds`, after one to warm up."""
    wait = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
    run()
    wait()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        wait()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def promised(device: torch.device | str = "cpu") -> Promise:
    """What the device should reach: from a GPU's data sheet, or estimated from what the CPU says of itself."""
    device = torch.device(device)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known in ACCELERATORS:
            if known.in_torch in name:
                return Promise(known.flops, known.bandwidth, f"data sheet of {name}, dense bfloat16")
        return Promise(None, None, f"no figure is known for {name}")
    if device.type == "cpu" and CPUINFO.is_file():
        return cpu_promise(CPUINFO.read_text(), torch.get_num_threads())
    return Promise(None, None, f"no figure is known for {device.type} here")


def cpu_promise(cpuinfo: str, threads: int) -> Promise:
    """Cores x clock x float32 operations a cycle, from the text of /proc/cpuinfo: an estimate, turbo left out."""
    fields: dict[str, list[str]] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), []).append(value.strip())
    flags = set(" ".join(fields.get("flags", fields.get("features", []))[:1]).split())
    unit = next((name for name in _PER_CYCLE if name in flags), None)
    if unit == "avx512f" and "AuthenticAMD" in fields.get("vendor_id", []) and "25" in fields.get("cpu family", []):
        unit = "fma"  # Zen 4 runs a 512-bit instruction as two of 256 bits
    clock = max((float(mhz) for mhz in fields.get("cpu mhz", [])), default=None)
    if unit is None or clock is None:
        return Promise(None, None, "/proc/cpuinfo names no clock or no vector unit that is known")
    packages = fields.get("physical id", [""])
    cores = len(set(zip(packages, fields["core id"], strict=False))) if "core id" in fields else threads
    used = min(threads, cores)
    source = f"estimate: {used} cores x {clock / 1000:.2f} GHz x {_PER_CYCLE[unit]} float32 operations a cycle ({unit})"
    return Promise(used * clock * 1e6 * _PER_CYCLE[unit], None, source)


@lru_cache
def _peak(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    n = 1024 if device.type == "cpu" else 4096
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    c = torch.empty_like(a)
    with torch.inference_mode():
        return 2 * n**3 / best_time(lambda: torch.mm(a, b, out=c), device)


@lru_cache
def _bandwidth(device: torch.device, threads: int) -> float:
    held = torch.ones(2**25 if device.type == "cpu" else 2**28, device=device)
    with torch.inference_mode():
        return held.nbytes / best_time(held.sum, device)
