"""How light the commands are: wall time of whole processes against `import torch`, best and median of several.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BAKEOFF = str(Path(sys.executable).with_name("bakeoff"))

COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import lightning.pytorch": [sys.executable, "-c", "import lightning.pytorch"],
    "import bakeoff": [sys.executable, "-c", "import bakeoff"],
    "bakeoff --help": [BAKEOFF, "--help"],
    "bakeoff list": [BAKEOFF, "list"],
    "bakeoff show mamba2": [BAKEOFF, "show", "mamba2"],
    "bakeoff check recipes/quickstart.yaml": [BAKEOFF, "check", str(ROOT / "recipes" / "quickstart.yaml")],
}


def seconds(command: list[str]) -> float:
    """Wall time of one run of a command."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main(rounds: int = 5) -> None:
    """Run all commands in turn, `rounds` times, after one round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for i in range(rounds + 1):
        for name, command in COMMANDS.items():
            taken = seconds(command)
            if i:
                times[name].append(taken)
    torch = statistics.median(times["import torch"])
    print(f"| {'command':<38} | best s | median s | of import torch |\n|---|---:|---:|---:|")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"| {name:<38} | {min(taken):.2f} | {median:.2f} | {median / torch:.2f} |")


if __name__ == "__main__":
    main()
