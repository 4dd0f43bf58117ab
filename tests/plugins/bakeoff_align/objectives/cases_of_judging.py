"""What ranks do together: a model that judges, of which each has a share, beside the same model whole."""

import torch
from bakeoff.registry import find

from tests.parallel.cases_of_tensor import built
from tests.plugins.bakeoff_align.preference.cases_on_ranks import BLOCKS, same_on_ranks


def judging_equals_whole(how, use, **arguments):
    """Of rows of unlike lengths."""
    whole = built(BLOCKS, head={"use": "scored"}, tied_embedding=False)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(whole.context.vocab_size, (4, 16), generator=draw)
    real = torch.arange(16) < torch.tensor([[16], [9], [4], [12]])
    labels = torch.where(real & (torch.arange(16) % 3 == 0), 1.0, torch.nan)
    batch = {"tokens": tokens, "real": real, "documents": None, "weights": real.float(), "labels": labels}
    same_on_ranks(find(use, "objective")(**arguments), whole, {**batch, "margin": torch.tensor([0.5, 0.0])}, how)
