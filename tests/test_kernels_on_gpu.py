"""Where a GPU is, every mixer with kernels gives with them what its plain recurrence gives, as the laws ask."""

import bakeoff.testing.build
import pytest
import torch
from bakeoff.errors import CapabilityError, MissingExtra
from bakeoff.interfaces import Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.past import Past
from bakeoff.parts.needs import gather
from bakeoff.registry import find, names
from bakeoff.testing.batch import pulled
from bakeoff.testing.candidate import Beside
from torch import nn

B, T = 3, 70
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def mixers():
    """Name and arguments of every mixer that has a choice of backends."""
    for entry in names("mixer"):
        cls = find(entry.name)
        if "backend" in cls.__init__.__annotations__:
            yield from (
                pytest.param(cls, arguments, id=f"{entry.name}-{i}") for i, arguments in enumerate(cls.examples())
            )


def built(cls, arguments, backend, seed=0):
    place = bakeoff.testing.build.context()
    part = bakeoff.testing.build.built(cls, {**arguments, "backend": backend}, place)
    whole = Beside(part, place.parts)
    initialise(whole, seed=seed)
    return whole.to(DEVICE)


def places(case):
    """Documents, real tokens, and the lengths of the calls that a sequence is cut into; one call keeps no state."""
    starts, real = torch.zeros(B, T, dtype=torch.long), torch.ones(B, T, dtype=torch.bool)
    starts[0, 30], starts[1, [1, 50, 52]] = 1, 1
    real[0, :5], real[2, :1] = False, False
    documents = starts.cumsum(1)
    return {
        "one call": (None, None, [T]),
        "documents": (documents, None, [T]),
        "padding": (None, real, [T]),
        "split": (None, None, [33, 1, T - 34]),
        "documents, split": (documents, None, [33, T - 33]),
    }[case]


def outputs(whole, call, x, case):
    """(B, T, D) of consecutive calls."""
    documents, real, lengths = places(case)
    part, found, at = whole.part, [], 0
    past = state = None
    if len(lengths) > 1:
        past, state = Past(B, T, DEVICE), part.empty_state(B, T, torch.float32, DEVICE)
    for length in lengths:
        cut = [None if t is None else t[:, at : at + length].to(DEVICE) for t in (documents, real)]
        tokens = torch.zeros(B, length, dtype=torch.long, device=DEVICE)
        sequence = Sequence(tokens, documents=cut[0], real=cut[1], past=past).prepare(gather(whole))
        result = getattr(part, call)(x[:, at : at + length], sequence, state)
        found.append(result.y if cut[1] is None else result.y * cut[1][..., None])
        past, state = None if past is None else past.advance(sequence), result.state
        at += length
    return torch.cat(found, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a CUDA GPU, and there is none")
@pytest.mark.parametrize("case", ["one call", "documents", "padding", "split", "documents, split"])
@pytest.mark.parametrize(("cls", "arguments"), list(mixers()))
def test_kernels_give_what_the_recurrence_gives(cls, arguments, case):
    try:
        whole = built(cls, arguments, "kernels")
    except (MissingExtra, CapabilityError) as error:
        pytest.skip(str(error))
    agree(whole, case)


def agree(whole: nn.Module, case: str) -> None:
    """Outputs and gradients of the chosen form and of the naive one, to float32 products on a GPU."""
    x = torch.randn(B, T, bakeoff.testing.build.D_MODEL, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    leaves = [x.requires_grad_(), *whole.parameters()]
    found = []
    for call in ("__call__", "naive"):
        y = outputs(whole, call, x, case)
        found.append([y, *pulled(y, leaves)])
    for ours, expected in zip(*found, strict=True):
        scale = float(expected.detach().abs().max())
        torch.testing.assert_close(ours, expected, atol=2e-3 * max(scale, 1e-3), rtol=0)
