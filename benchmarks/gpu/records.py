"""Results: one JSON line a case, appended whole; what a device, its software and our sources make comparable."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cases import Case

ROOT = Path(__file__).resolve().parents[2]
#: What can change a figure.
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "flash-attn",
    "flash-linear-attention",
    "mamba-ssm",
    "causal-conv1d",
    "bakeoff",
)


def surroundings(device: str) -> dict[str, Any]:
    """The device, its driver, the packages, the commit where there is one, and a digest of our sources."""
    return {
        "device": _device(device),
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "commit": _commit(),
        "sources": _sources(),
    }


def _device(device: str) -> dict[str, Any]:
    if torch.device(device).type != "cuda":
        return {"name": platform.processor() or platform.machine(), "kind": device}
    told = torch.cuda.get_device_properties(device)
    capability = f"{told.major}.{told.minor}"
    return {
        "name": told.name,
        "kind": "cuda",
        "memory": told.total_memory,
        "capability": capability,
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    return _said("git", "-C", str(ROOT), "rev-parse", "HEAD")


def _said(*command: str) -> str | None:
    """The first line that a program prints; None where there is no such program or it fails."""
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0].strip() if lines else None


def _sources() -> str:
    """Of every Python file and recipe that a case reads, so that what is not committed counts as well."""
    digest = hashlib.sha256()
    for folder in ("framework", "plugins", "recipes", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml"):
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def key(case: dict[str, Any], around: dict[str, Any]) -> str:
    """Equal keys, equal measurements."""
    told = [case, around["device"]["name"], around["device"].get("driver"), around["versions"], around["sources"]]
    return json.dumps(told, sort_keys=True)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; a line that was cut off is left out."""
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def append(path: Path, record: dict[str, Any]) -> None:
    """One line in one write, on the disk before this returns; after a line that was cut off, on a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(file).st_size
        whole = not size or os.pread(file, 1, size - 1) == b"\n"
        os.write(file, (("" if whole else "\n") + json.dumps(record) + "\n").encode())
        os.fsync(file)
    finally:
        os.close(file)


def found(path: Path, around: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Records of these surroundings by key, the last of each."""
    return {key(record["case"], record): record for record in read(path) if _alike(record, around)}


def _alike(record: dict[str, Any], around: dict[str, Any]) -> bool:
    return key({}, record) == key({}, around)


def key_of(case: Case, around: dict[str, Any]) -> str:
    """The key that the case's record has here."""
    return key(case.plain(), around)
