"""What ranks do in the tests of the short convolution."""

import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.parts.short_convolution import ShortConvolution
from torch import distributed


def sum_of_the_last(width, order, documents, expected):
    """Each token's sum over the last `width` ones of its document, of a row of ones."""
    part = ShortConvolution(LayerContext(d_model=8, vocab_size=2, max_length=64), channels=1, width=width, bias=False)
    torch.nn.init.ones_(part.weight)
    row = torch.tensor([documents])
    sequence = Sequence(torch.zeros_like(row), documents=row).shared_out(distributed.group.WORLD, order)
    y = part(torch.ones(1, sequence.length, 1), sequence).y
    assert y.flatten().tolist() == sequence.spans.take(torch.tensor([expected])).flatten().tolist()
