"""The process of one case: `python -m benchmarks.gpu.child CASE DEVICE ANSWER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import checks
from benchmarks.gpu.cases import Case

_KEPT = 600


def result(case: Case, device: str) -> dict[str, Any]:
    """What becomes of the case."""
    try:
        figures = _figures(case, device)
    except torch.OutOfMemoryError as error:
        return {"status": "out of memory", "reason": str(error)[:_KEPT], "figures": {}}
    except Exception as error:  # whatever a library raises is the case's result
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:_KEPT], "figures": {}}
    return {"status": "done", "reason": "", "figures": figures}


def _figures(case: Case, device: str) -> dict[str, Any]:
    if case.what in ("training", "decoding"):
        from benchmarks.gpu.measuring import measure

        return measure(case, device)
    return getattr(checks, case.what)(case, device)


if __name__ == "__main__":
    given, where, answer = sys.argv[1:]
    torch.backends.cuda.matmul.allow_tf32 = False
    Path(answer).write_text(json.dumps(result(Case(**json.loads(given)), where)))
