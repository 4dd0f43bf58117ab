"""Small layers of RETRO, rows of tokens, and what is found for their chunks."""

from functools import partial

import torch
from bakeoff.interfaces import LayerContext, Neighbours
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.neighbours import EMBEDDED, NEIGHBOURS
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.chunks import ends
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.testing.candidate import Beside
from bakeoff_retro import Retro

D, V, M, K = 16, 32, 4, 2


def context(**known):
    return LayerContext(d_model=D, vocab_size=V, max_length=64, **known)


def retro(place, **given):
    """A layer of the smallest kind, in `place`."""
    parts = {"mixer": partial(Attention, n_heads=2), "feed_forward": MLP}
    return Retro(place, **{**parts, "n_heads": 2, "chunk": M, "k": K, "encoder_depth": 1, **given})


def layer(**given):
    """One, beside its encoder, with values, in float64."""
    place = context()
    beside = Beside(retro(place, **given), place.parts)
    initialise(beside, seed=0)
    return beside.double().eval()


def decoder(depth, **given):
    """A backbone of layers that share an encoder."""
    model = Decoder(context(), depth=depth, pattern=["layer"], blocks={"layer": partial(retro, **given)})
    initialise(model, seed=0, depth=depth)
    return model.double().eval()


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(B, T, seed=0):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


def texts(B, C, k=K, seed=1):
    return torch.randint(V, (B, C, k, 2 * M), generator=torch.Generator().manual_seed(seed))


def found(sequence, seed=1, real=None):
    """The sequence, with neighbours of the chunks that end in it."""
    last = ends(sequence, M).last
    text = texts(*last.shape, seed=seed)
    show(sequence, Neighbours(text, torch.ones_like(text).bool() if real is None else real, last))
    return sequence


def show(sequence, neighbours):
    """Put neighbours into the memory, with a vector for each token; a backbone has vectors of its own."""
    sequence.memory[NEIGHBOURS] = neighbours
    sequence.memory[EMBEDDED] = numbers(V, D, seed=9)[neighbours.tokens]


def run(beside, x, sequence, state=None):
    """What a layer makes of its input."""
    needs = [need for part in beside.modules() if hasattr(part, "needs") for need in part.needs()]
    with torch.no_grad():
        return beside.part(x, sequence.prepare(needs), state)
