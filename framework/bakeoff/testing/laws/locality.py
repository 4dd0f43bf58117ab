"""What claims that each token stands alone is called with its tokens in any order, from any sequence."""

from __future__ import annotations

import torch

from bakeoff.testing.law import Broken, sequence_law
from bakeoff.testing.subject import MODES, Subject


@sequence_law(None, "token locality", hosted=False, claims=("token_local",))
def token_locality(subject: Subject) -> None:
    """Tokens in another order, in rows of another length, among others and told otherwise, give the same outputs."""
    batch = subject.batch(2, 6)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(subject.seed))[:8]
    picked = subject.batch(1, 8, real=(torch.arange(8) > 2)[None])
    picked.x.copy_(batch.x.flatten(0, 1)[order][None])
    for mode in MODES:
        with subject.mode(mode, quiet=True), torch.no_grad():
            whole, some = subject.run(batch).y.flatten(0, 1)[order][None], subject.run(picked).y
        place = subject.apart(whole, some)
        if place is not None:
            raise Broken(f"{mode}: claims `token_local`, but among other tokens an output differs by {place.by}")
