"""One case as a process of its own: bounded, and whatever becomes of it, a result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.candidates import missing
from benchmarks.gpu.cases import Case
from benchmarks.gpu.records import ROOT

#: The end of what a process said that is kept with its failure.
_KEPT = 600


def run(case: Case, device: str, seconds: float) -> dict[str, Any]:
    """`status` (done, missing, failed, out of memory, timeout, crashed), `reason`, `figures`, and `took` in seconds."""
    absent = missing(case)
    if absent:
        return {"status": "missing", "reason": absent, "figures": {}, "took": 0.0}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        answer, said = Path(folder) / "answer.json", Path(folder) / "said"
        command = [sys.executable, "-m", "benchmarks.gpu.child", json.dumps(case.plain()), device, str(answer)]
        with said.open("wb") as log:
            running = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
            try:
                code: int | None = running.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(running)
        took = round(time.monotonic() - start, 1)
        return {**_told(code, answer, said, seconds), "took": took}


def _end(running: subprocess.Popen[bytes]) -> None:
    """End the process and those that it started, such as a compiler's, if they still run."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def _told(code: int | None, answer: Path, said: Path, seconds: float) -> dict[str, Any]:
    if code is None:
        return {"status": "timeout", "reason": f"no result after {seconds:.3g} s", "figures": {}}
    if code == 0 and answer.is_file():
        return json.loads(answer.read_text())
    last = said.read_text(errors="replace").strip()[-_KEPT:]
    return {"status": "crashed", "reason": f"exit code {code}: {last}", "figures": {}}
