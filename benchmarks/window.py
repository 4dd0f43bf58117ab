"""Windowed attention as banded work against full causal attention: CPU time, one thread, forward and backward.

python benchmarks/window.py
"""

from __future__ import annotations

import statistics
import time

import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.parts.attention.auto import Auto
from bakeoff.parts.attention.sdpa import SDPA

BATCH, HEADS, KV_HEADS, WIDTH, WINDOW = 4, 4, 2, 64, 64


def milliseconds(op_class: type, window: int | None, length: int) -> float:
    """Median of ten runs."""
    op = op_class(LayerContext(d_model=HEADS * WIDTH, vocab_size=8, max_length=length, window=window))
    q, k, v = (torch.randn(BATCH, length, h, WIDTH, requires_grad=True) for h in (HEADS, KV_HEADS, KV_HEADS))
    sequence = Sequence(torch.zeros(BATCH, length, dtype=torch.long)).prepare(op.needs())
    times = []
    for _ in range(11):
        start = time.process_time()
        op(q, k, v, sequence)[0].sum().backward()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times[1:])


def main() -> None:
    """One row a length."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"| T | window {WINDOW}, ms | full, ms | ratio |\n|---:|---:|---:|---:|")
    for length in (256, 512, 1024, 2048):
        band, full = milliseconds(Auto, WINDOW, length), milliseconds(SDPA, None, length)
        print(f"| {length} | {band:.1f} | {full:.1f} | {full / band:.2f} |")


if __name__ == "__main__":
    main()
