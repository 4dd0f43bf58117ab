"""One GPU, no network, nobody watching: each case is a bounded process, each result a line, and a rerun goes on.

python -m benchmarks.gpu                                  # every family that is raced, 12 minutes at most
python -m benchmarks.gpu --families mamba2,griffin --limit-seconds 300
python -m benchmarks.gpu --families laws,bf16             # the conformance laws and bf16 of every mixer
python -m benchmarks.gpu --table
python -m benchmarks.gpu --device cpu --quick             # the whole path in small, anywhere
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import records
from benchmarks.gpu.cases import CHECKED, FAMILIES, RACED, Case, cases
from benchmarks.gpu.running import run
from benchmarks.gpu.table import show

#: Seconds that one case may take, and the fewest for which one is begun.
CASE_SECONDS, LEAST_SECONDS = 60.0, 15.0


def main() -> int:
    """The exit code: 0, or 2 where there is no such device or family."""
    given = _arguments()
    if given.table:
        show(records.read(given.results))
        return 0
    families = tuple(given.families.split(",")) if given.families else tuple(RACED)
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        print(f"no family is called {', '.join(unknown)}; families: {', '.join(FAMILIES)}", file=sys.stderr)
        return 2
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device here; `--device cpu --quick` runs the whole path in small", file=sys.stderr)
        return 2
    around = records.surroundings(given.device)
    chosen = [case for case in cases(families, given.quick) if not (given.uncompiled and case.compiled)]
    done = records.found(given.results, around)
    left = [case for case in chosen if _wanted(done.get(records.key_of(case, around)), given.retry)]
    print(f"{len(chosen)} cases, {len(chosen) - len(left)} of them in {given.results}", flush=True)
    _go_through(left, given, around)
    return 0


def _wanted(record: dict[str, Any] | None, retry: bool) -> bool:
    return record is None or (retry and record["status"] != "done")


def _go_through(left: list[Case], given: argparse.Namespace, around: dict[str, Any]) -> None:
    until = time.monotonic() + given.limit_seconds
    for number, case in enumerate(left, 1):
        seconds = min(given.case_seconds, until - time.monotonic())
        if seconds < min(LEAST_SECONDS, given.case_seconds):
            print(
                f"{given.limit_seconds:.0f} s are over; a rerun goes on with the other {len(left) - number + 1} cases"
            )
            return
        result = run(case, given.device, seconds)
        if result["status"] == "timeout" and seconds < given.case_seconds:
            print(f"{case.name}: cut off by --limit-seconds; a rerun begins it again")
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        records.append(given.results, {"case": case.plain(), **result, "at": at, **around})
        reason = result["reason"].splitlines()[-1:] or [""]
        print(
            f"{number}/{len(left)} {case.name}: {result['status']} {reason[0][:160]} ({result['took']} s)", flush=True
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    told = f"by comma; by default {', '.join(RACED)}; there are {' and '.join(CHECKED)} besides"
    parser.add_argument("--families", default="", help=told)
    parser.add_argument("--limit-seconds", type=float, default=720.0, help="no case begins that would end later")
    parser.add_argument("--case-seconds", type=float, default=CASE_SECONDS, help="that one case may take")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs")
    parser.add_argument("--uncompiled", action="store_true", help="leave out what is compiled")
    parser.add_argument("--retry", action="store_true", help="again what gave no figures before")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", type=Path, default=Path("gpu-results.jsonl"), help="a file, JSON by the line")
    parser.add_argument("--table", action="store_true", help="print what the file holds, in Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
