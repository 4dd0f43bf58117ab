"""One candidate in a process of its own: a line of JSON in, a line of JSON out.

Requests: `{"do": "build", …}` first, then `train`, `memory`, `decode`, `read` and `multiply`; seconds are of CPU time,
user and system.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from candidates import CANDIDATES
from shapes import SHAPES, SMALLEST
from torch import Tensor


def resident(field: str) -> float:
    """MiB that the kernel reports: VmRSS now, or VmHWM since the last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def seconds(run: Callable[[], Any]) -> float:
    """CPU time of one `run`."""
    start = time.process_time()
    run()
    return time.process_time() - start


class Worker:
    """Answers requests."""

    def build(self, candidate: str, shape: str, compiled: bool) -> dict[str, Any]:
        """Construct the model; report its parameters and the versions that it stands on."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.shape = SHAPES[shape]
        self.steps = 0
        kind = CANDIDATES[candidate]
        kind(SMALLEST)  # so that what the library imports is no part of the model's memory
        gc.collect()
        self.base = resident("VmRSS")
        self.candidate = kind(self.shape)
        self.optimizer = self.candidate.optimizer()
        if compiled:
            self.candidate.compile()
        return {"parameters": sum(p.numel() for p in self.candidate.model.parameters()), "torch": torch.__version__}

    def train(self) -> dict[str, float]:
        """One step."""
        self.candidate.model.train()
        ids = torch.randint(self.shape.vocabulary, (self.shape.batch, self.shape.length + 1))
        value: list[float] = []
        spent = seconds(lambda: value.append(self._step(ids)))
        return {"seconds": spent, "loss": value[0]}

    def memory(self) -> dict[str, float]:
        """The highest mark of three steps, and how far it is over what stood before the model."""
        Path("/proc/self/clear_refs").write_text("5")
        for _ in range(3):
            self.train()
        return {"peak": resident("VmHWM"), "over": resident("VmHWM") - self.base}

    def decode(self, batch: int) -> dict[str, float]:
        """One generation, its prefill included."""
        self.candidate.model.eval()
        prompts = torch.randint(256, (batch, self.shape.prompt), generator=torch.Generator().manual_seed(0))
        new: list[Tensor] = []
        spent = seconds(lambda: new.append(self.candidate.generate(prompts, self.shape.new)))
        assert new[0].shape == (batch, self.shape.new)
        return {"seconds": spent}

    def read(self) -> dict[str, float]:
        """Every weight read once."""
        with torch.inference_mode():
            held = list(self.candidate.model.parameters())
            spent = seconds(lambda: [[p.sum() for p in held] for _ in range(10)])
        return {"seconds": spent / 10}

    def multiply(self) -> dict[str, float]:
        """Square matrix products, operations a second."""
        a, b, c = (torch.ones(2048, 2048) for _ in range(3))
        return {"rate": 3 * 2 * 2048**3 / seconds(lambda: [torch.mm(a, b, out=c) for _ in range(3)])}

    def _step(self, ids: Tensor) -> float:
        loss = self.candidate.loss(ids)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def main() -> None:
    """Answer until the input ends; what libraries print goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(worker, request.pop("do"))(**request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
