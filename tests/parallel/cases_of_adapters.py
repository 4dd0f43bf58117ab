"""What ranks do for parts with adapters on every product: they share them out, beside the same part whole."""

import torch
from bakeoff.interfaces import init
from bakeoff.parts.adapters import Adapters, adapter_parameters
from bakeoff.parts.needs import gather
from bakeoff.registry import find
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.cases_of_parallel import _learned, compare, split
from bakeoff.testing.subject import Subject


def share_equals_whole(component: str, kind: str, arguments: dict) -> None:
    """Outputs, sums and gradients, adapters' among them, of the ranks' shares are those of one process."""
    whole, share = (adapted(Candidate(find(component), kind, arguments).subject) for _ in range(2))
    before = dict(share.root.named_parameters())
    held = {name: parameter.shape for name, parameter in before.items()}
    ours = split(share.root)
    share.needs = gather(share.root)
    assert any("adapter" in name and parameter.shape != held[name] for name, parameter in before.items())
    for mode in whole.modes_claiming("tensor_parallel"):
        with whole.mode(mode, quiet=True), share.mode(mode, quiet=True):
            batch = whole.batch(2, 9)
            compare(mode, _learned(whole, batch), _learned(share, batch), share.root, ours)


def adapted(subject: Subject) -> Subject:
    """With adapters on every product, none of their factors zero."""
    Adapters(rank=3, scale=0.7, on=["*"]).add_to(subject.root)
    for name, parameter in adapter_parameters(subject.root).items():
        parameter.data.copy_(
            torch.randn(parameter.shape, generator=init.generator(0, name)) / parameter.shape[-1] ** 0.5
        )
    return subject
