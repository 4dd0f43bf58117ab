"""The Python that each library runs in: this one, or an environment of its own where it pins other versions."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path

#: What rests on this environment's packages, and what pins others and so stands apart.
BESIDE = {
    "x-transformers": "x-transformers==2.31.10",
    "ring-attention-pytorch": "ring-attention-pytorch==0.5.20",
}
APART = {"litgpt": "litgpt==0.5.13"}


def python_for(candidate: str, folder: Path) -> Path:
    """The interpreter for a candidate; its environment is made under `folder` when it is first asked for."""
    library = candidate.partition(",")[0]
    if library in BESIDE:
        return _made(folder / library, [BESIDE[library]], Path(sysconfig.get_paths()["purelib"]))
    if library in APART:
        torch = importlib.metadata.version("torch").partition("+")[0]
        return _made(folder / library, [APART[library], f"torch=={torch}"], None)
    return Path(sys.executable)


def _made(folder: Path, requirements: list[str], beneath: Path | None) -> Path:
    python, done = folder / "bin" / "python", folder / "complete"
    if done.is_file():
        return python
    print(f"making {folder}: {', '.join(requirements)}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    if beneath is not None:
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (folder / "lib" / name / "site-packages" / "beneath.pth").write_text(f"{beneath}\n")
    subprocess.run([str(python), "-m", "pip", "install", "-qqq", *requirements], check=True)
    done.touch()
    return python
