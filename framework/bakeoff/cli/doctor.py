"""`bakeoff doctor`: what is installed, what is broken, and what this machine reaches."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

from bakeoff.errors import RegistryError, UserError
from bakeoff.interfaces.command import Command
from bakeoff.registry import find, names

#: (title, what is found, whether something is wrong)
Finding = tuple[str, str, bool]

#: Packages with fast kernels for a GPU; the parts that ship with bakeoff run without.
KERNELS = ("triton", "flash_attn", "mamba_ssm", "causal_conv1d", "fla")

#: Environment that spares the C library's allocator most page faults; read when a process starts.
ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
}

#: Less than this share of the promised speed means that something holds the machine back.
SLOW = 0.5


class Doctor(Command):
    """Look over the installation and the machine; exit code 1 if a component is broken or a name has two owners."""

    help = "versions, devices, plugins, and the speed this machine reaches"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Whether to look at the way between ranks instead."""
        parser.add_argument(
            "--distributed", action="store_true", help="ranks of this machine: meeting, sums, bandwidth"
        )
        parser.add_argument(
            "--devices", type=int, metavar="N", help="with --distributed: ranks (default: devices, or 2)"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Print each finding as it is made."""
        if arguments.devices is not None and not arguments.distributed:
            raise UserError("--devices says how many ranks --distributed starts; give both")
        if arguments.distributed:
            from bakeoff.cli.doctor_ranks import ranks

            return ranks(arguments.devices)
        broken = False
        for look in (versions, extras, kernels, plugins, devices, speed, allocator, caches):
            for title, found, wrong in look():
                broken = broken or (wrong and look is plugins)
                print(f"{'!' if wrong else ' '} {title:<12} {found}", flush=True)
        return 1 if broken else 0


def versions() -> Iterator[Finding]:
    """Of what everything stands on."""
    named = [f"{name} {_version(name)}" for name in ("bakeoff", "torch", "lightning")]
    yield "versions", f"{', '.join(named)}, Python {platform.python_version()} on {platform.system()}", False


def extras() -> Iterator[Finding]:
    """Each optional extra: what of it is there, or the pip line that adds it."""
    wanted: dict[str, list[str]] = {}
    for requirement in metadata.requires("bakeoff") or []:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if extra and name and extra[1] != "dev":
            wanted.setdefault(extra[1], []).append(name[0])
    for extra_name, packages in sorted(wanted.items()):
        missing = [package for package in packages if _version(package) is None]
        held = ", ".join(f"{package} {_version(package)}" for package in packages if package not in missing)
        line = f"not installed: pip install 'bakeoff[{extra_name}]'" if missing else held
        yield f"[{extra_name}]", line, False


def kernels() -> Iterator[Finding]:
    """Which kernel packages are there, and whether a compiler is, for `compile: true`."""
    there = [f"{name} {_version(name) or ''}".strip() for name in KERNELS if find_spec(name) is not None]
    yield "kernels", ", ".join(there) or f"none of {', '.join(KERNELS)}; parts run in plain PyTorch", False
    compiler = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    yield "compiler", compiler or "none: `compile: true` will not work on a CPU (install g++)", False


def plugins() -> Iterator[Finding]:
    """Every component is loaded once; those that fail are named and hold up no other."""
    sound: Counter[str] = Counter()
    faults: dict[str, None] = {}
    for entry in names():
        try:
            find(entry.name)
            sound[f"{entry.package} {entry.version}".strip()] += 1
        except RegistryError as error:
            faults[str(error)] = None
    for package, count in sorted(sound.items()):
        yield "components", f"{count} of {package} load", False
    for fault in faults:
        yield "components", fault, True


def devices() -> Iterator[Finding]:
    """Where tensors can stand, and with how many threads."""
    import torch

    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    asked = os.environ.get("OMP_NUM_THREADS")
    source = f", as OMP_NUM_THREADS={asked} says" if asked else ""
    yield "cpu", f"cores {cores}, threads {threads}{source}", False
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        yield f"cuda:{number}", f"{about.name}, {about.total_memory / 2**30:.0f} GiB", False
    if torch.backends.mps.is_available():
        yield "mps", "there", False
    if torch.version.cuda and not torch.cuda.is_available():
        yield "cuda", f"torch is built for CUDA {torch.version.cuda}, but no device answers", True


def speed() -> Iterator[Finding]:
    """Matrix products and reading of memory, measured, beside what is promised."""
    import torch

    from bakeoff.model.machine import measured_bandwidth, measured_peak, promised

    kinds = {"cpu": torch.float32} | {f"cuda:{i}": torch.bfloat16 for i in range(torch.cuda.device_count())}
    for device, kind in kinds.items():
        peak, promise = measured_peak(device, kind), promised(device)
        found = f"{peak / 1e9:,.0f} GFLOP/s in {str(kind).removeprefix('torch.')} products of {device}"
        slow = False
        if promise.flops is not None:
            share = peak / promise.flops
            slow = share < SLOW
            found += f", {share:.0%} of {promise.flops / 1e9:,.0f} ({promise.source})"
        else:
            found += f" ({promise.source})"
        if slow:
            found += "; other programs, few threads or a low clock hold it back"
        yield "speed", found, slow
        read = measured_bandwidth(device)
        found = f"{read / 1e9:,.1f} GB/s read by {device}"
        yield "memory", found + (f" of {promise.bandwidth / 1e9:,.0f}" if promise.bandwidth else ""), False


def allocator() -> Iterator[Finding]:
    """Whether the environment spares page faults in training on a CPU."""
    if platform.libc_ver()[0] != "glibc":
        return
    if os.environ.get("THP_MEM_ALLOC_ENABLE") == "1" or all(os.environ.get(name) for name in ALLOCATOR):
        yield "allocator", "set for large pages", False
        return
    words = " ".join(f"{name}={value}" for name, value in ALLOCATOR.items())
    advice = f"default; before a command, {words} can save a tenth of a training step on a CPU, for more memory"
    yield "allocator", advice, False


def caches() -> Iterator[Finding]:
    """Where tokenizers and token stores are kept, and the room there."""
    from bakeoff.data.preparing import cache_folder

    folder = cache_folder(None)
    standing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(standing).free / 2**30
    state = f"{len(list((folder / 'tokens').glob('*/')))} token stores" if folder.is_dir() else "empty"
    writable = os.access(standing, os.W_OK)
    found = f"{folder}: {state}, {free:.0f} GiB free (BAKEOFF_CACHE moves it)"
    yield "cache", found if writable else f"{found}; not writable", not writable


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
