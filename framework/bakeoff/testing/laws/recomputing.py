"""A forward that is run anew in backward gives what the first one gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from bakeoff.model.recompute import MODES, recompute
from bakeoff.testing.batch import Batch
from bakeoff.testing.law import Broken, NotApplicable, sequence_law
from bakeoff.testing.subject import Subject


@sequence_law(None, "recompute", hosted=False)
def recomputing(subject: Subject) -> None:
    """Recomputed, selectively or in full, the same outputs, sums and gradients, bit for bit; sums counted once."""
    if subject.module.kind == "backbone":
        raise NotApplicable("its blocks are recomputed one by one")
    for told, batch in _batches(subject):
        wanted = _of_mode(subject, batch, "none")
        for mode in MODES[1:]:
            where = f"training, {told}, recompute {mode}"
            try:
                found = _of_mode(subject, batch, mode)
            except CheckpointError as error:
                raise Broken(f"{where}: CheckpointError: {error}") from error
            for name, value in found.items():
                if not torch.equal(value, wanted[name]):
                    raise Broken(f"{where}: {name} is another one")


def _batches(subject: Subject) -> Iterator[tuple[str, Batch]]:
    for T in (5, *(c + 3 for c in subject.landmarks()[:1])):
        yield f"B=2, T={T}", subject.batch(2, T)


def _of_mode(subject: Subject, batch: Batch, mode: str) -> dict[str, Tensor]:
    batch = replace(batch, x=batch.x.clone().requires_grad_())
    leaves = {"the gradient of x": batch.x}
    leaves |= {f"the gradient of {name}": parameter for name, parameter in subject.parameters().items()}
    recompute(subject.module, mode)
    try:
        with subject.mode("training"):
            y, aux, _ = subject.run(batch)
            values = {"the output": y, **{f"aux {name}": value for name, value in aux.items()}}
            told = [value.double().square().sum() for value in values.values() if value.requires_grad]
            slopes = torch.autograd.grad(torch.stack(told).sum(), [*leaves.values()], allow_unused=True) if told else ()
    finally:
        recompute(subject.module, "none")
    values = {name: value.detach() for name, value in values.items()}
    return values | {name: slope for name, slope in zip(leaves, slopes, strict=False) if slope is not None}
