"""Where the numbers of a run come from: code, packages, machine."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from bakeoff.registry import entry


def owners(components: Iterable[str]) -> dict[str, dict[str, str]]:
    """Package and version that ship each component."""
    found = {name: entry(name) for name in components}
    return {name: {"package": e.package, "version": e.version, "target": e.target} for name, e in found.items()}


def code_of(components: Iterable[str]) -> dict[str, str]:
    """Top-level module -> hash of its sources, for `bakeoff` and for every module that ships one of the components."""
    targets = [entry(name).target for name in components]
    modules = {"bakeoff", *(target.partition(":")[0].partition(".")[0] for target in targets)}
    return {module: digest for module in sorted(modules) if (digest := _sources(module)) is not None}


def machine() -> dict[str, Any]:
    """Processor, memory, devices and threads of this process."""
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "devices": devices,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
    }


def git_commit(folder: Path) -> str | None:
    """The commit of the checkout that holds a package's folder, with a `+` where files differ from it; else None."""
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")  # not an environment inside somebody's checkout
        commit = _git(folder, "rev-parse", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command() -> str:
    """The command line of this process."""
    words = sys.argv if sys.argv and sys.argv[0] else [sys.executable]
    return shlex.join([Path(words[0]).name, *words[1:]])


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()


@lru_cache
def _sources(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a notebook's, or a script's own
        return None
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin)
    files = sorted(root.parent.rglob("*.py")) if root.name == "__init__.py" else [root]
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(root.parent)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
