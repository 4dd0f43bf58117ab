"""What ranks do in the tests of mixers that they share out: one of which each has a share beside the same one whole."""

import copy

import torch
from bakeoff.interfaces import Sequence
from bakeoff.interfaces.cut import shares_of
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.past import Past
from bakeoff.parallel.tensor import Stream, share_out, work_together
from bakeoff.parts.needs import gather
from bakeoff.registry import find
from bakeoff.testing.build import built, context
from bakeoff.testing.values import jitter
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

TOKENS = 9


def made(use, arguments):
    """A part of the kit's size with random values everywhere, in float64."""
    part = built(find(use), arguments, context())
    initialise(part, seed=2)
    jitter(part, 3)
    return part.double()


def tensor_ranks():
    """All ranks, as those that work on one part together."""
    return init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("tensor",))["tensor"]


def split(part, ranks):
    """A copy of a part of which each rank has its share; its parameters by name, and their shares."""
    share = copy.deepcopy(part)
    share_out(share, ranks)
    work_together(share, Stream(ranks))
    assert sum(p.numel() for p in share.parameters()) < sum(p.numel() for p in part.parameters())
    return share


def of_whole(share, name, whole):
    """What this rank has of a whole tensor called `name` in a part; and whether that is less than all."""
    path, _, last = name.rpartition(".")
    cut = shares_of(share.get_submodule(path)).get(last)
    return (whole, False) if cut is None else (cut.of(whole), True)


def share_equals_whole(use, **arguments):
    """Outputs and gradients, packed and padded rows too, of one call and of two through a state."""
    ranks = tensor_ranks()
    whole = made(use, arguments)
    share = split(whole, ranks)
    generator = torch.Generator().manual_seed(1)
    documents = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1]).expand(2, -1)
    real = torch.ones(2, TOKENS, dtype=torch.bool)
    real[1, 7:] = False
    for told in ({}, {"documents": documents}, {"real": real}):
        x = torch.randn(2, TOKENS, 16, generator=generator, dtype=torch.float64)
        dy = torch.randn(2, TOKENS, 16, generator=generator, dtype=torch.float64)
        dy = dy if "real" not in told else dy * real[..., None]
        expected, got = (learned(part, x, dy, told) for part in (whole, share))
        torch.testing.assert_close(got[0], expected[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(got[1], expected[1], rtol=1e-9, atol=1e-9)
        for name, gradient in got[2].items():
            wanted, cut = of_whole(share, name, expected[2][name])
            if not cut:
                distributed.all_reduce(gradient)
            torch.testing.assert_close(
                gradient, wanted, rtol=1e-8, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
            )
    with torch.no_grad():
        torch.testing.assert_close(decoded(share, x), whole(x, sequence(whole, x)).y, rtol=1e-8, atol=1e-9)


def learned(part, x, dy, told):
    """Output, gradient of the input, and of the parameters by name."""
    x = x.clone().requires_grad_()
    y = part(x, sequence(part, x, **told)).y
    if "real" in told:
        y = y * told["real"][..., None]
    y.backward(dy)
    gradients = {name: p.grad for name, p in part.named_parameters()}
    part.zero_grad()
    return y.detach(), x.grad, gradients


def sequence(part, x, past=None, **told):
    """What a part is told of `x`."""
    tokens = torch.zeros(x.shape[:2], dtype=torch.long)
    return Sequence(tokens, past=past, **told).prepare(gather(part))


def decoded(part, x):
    """The output in three calls: four tokens, one, the rest."""
    state, past = part.empty_state(2, TOKENS, torch.float64), Past(2, TOKENS)
    found = []
    for piece in x.split([4, 1, TOKENS - 5], 1):
        here = sequence(part, piece, past)
        y, state, *_ = part(piece, here, state)
        past = past.advance(here)
        found.append(y)
    return torch.cat(found, 1)


def begins_as_the_whole(use, **arguments):
    """A share that is cut before it has values, and then initialised, has those of the initialised whole."""
    whole = built(find(use), arguments, context())
    with torch.device("meta"):
        share = built(find(use), arguments, context())
    share_out(share, tensor_ranks())
    share.to_empty(device="cpu")
    for part in (whole, share):
        initialise(part, seed=2)
    expected = dict(whole.named_parameters())
    for name, value in share.named_parameters():
        torch.testing.assert_close(value, of_whole(share, name, expected[name])[0], rtol=0, atol=0)
