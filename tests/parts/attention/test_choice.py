"""Which op `auto` takes."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.parts.attention.auto import Auto
from bakeoff.parts.attention.band import Band


def chosen(T, window):
    sequence = Sequence(torch.zeros(1, T, dtype=torch.long))
    return Auto(LayerContext(d_model=8, vocab_size=8, max_length=T, window=window)).keys[False].derive(sequence)


@pytest.mark.parametrize(
    ("T", "window", "band"),
    [(159, 4, False), (160, 4, True), (191, 64, False), (192, 64, True), (287, 128, False), (288, 128, True)],
)
def test_auto_takes_the_band_from_the_length_on_at_which_it_is_quicker(T, window, band):
    assert isinstance(chosen(T, window), Band) == band
