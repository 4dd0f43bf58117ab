"""A band must be worth its name: less work than the square, where it says so."""

import time

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.parts.attention.auto import Auto
from bakeoff.parts.attention.band import Band
from bakeoff.parts.attention.sdpa import SDPA


def chosen(T, window):
    sequence = Sequence(torch.zeros(1, T, dtype=torch.long))
    return Auto(LayerContext(d_model=8, vocab_size=8, max_length=T, window=window)).keys[False].derive(sequence)


@pytest.mark.parametrize(
    ("T", "window", "band"), [(127, 4, False), (128, 4, True), (128, 64, True), (255, 128, False), (256, 128, True)]
)
def test_auto_takes_the_band_from_four_blocks_on(T, window, band):
    assert isinstance(chosen(T, window), Band) == band


@pytest.mark.slow
@pytest.mark.parametrize("T", [512, 1024])
def test_forward_and_backward_beat_the_fused_causal_kernel(T):
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, T, h, 64, requires_grad=True) for h in (4, 2, 2))

    def seconds(op, window):
        op = op(LayerContext(d_model=256, vocab_size=8, max_length=T, window=window))
        sequence = Sequence(torch.zeros(4, T, dtype=torch.long)).prepare(op.needs())
        times = []
        for _ in range(5):
            start = time.process_time()
            op(q, k, v, sequence)[0].sum().backward()
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(Auto, 64) < 0.7 * seconds(SDPA, None)
