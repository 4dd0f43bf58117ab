"""Law 11: where compilation is claimed, few graphs serve all sequence lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from bakeoff.testing.law import Broken, NotApplicable, sequence_law
from bakeoff.testing.subject import Subject
from bakeoff.testing.values import fixed_noise

_LENGTHS = (5, 8, 13, 16, 21)
_GRAPHS = 2


@sequence_law(11, "compile", hosted=False, slow=True, claims=("compile",))
def compiling(subject: Subject) -> None:
    """At most two graphs over five sequence lengths, each with the values of the plain call."""
    if subject.module.kind == "backbone":
        raise NotApplicable("its blocks are compiled one by one")
    from torch._dynamo.testing import CompileCounter  # as slow to import as torch itself, so only where it is needed

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(subject.module, backend=counter, fullgraph=False)
    with subject.mode("training"):
        for T in _LENGTHS:
            batch = subject.batch(2, T)
            sequence = subject.sequence(batch).prepare(subject.needs)
            with fixed_noise(subject.seed):
                got: Tensor = compiled(batch.x.to(subject.device), sequence).y.cpu()
            place = subject.apart(subject.run(batch).y, got)
            if place is not None:
                raise Broken(f"training, T={T}: compiled, output {place.t} differs by {place.by}")
    torch._dynamo.reset()
    if counter.frame_count > _GRAPHS:
        lengths = ", ".join(map(str, _LENGTHS))
        raise Broken(f"training: {counter.frame_count} graphs over T = {lengths}; at most {_GRAPHS} are allowed")
