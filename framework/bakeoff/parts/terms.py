"""Loss terms with weights of their own: their gradients are kept apart where a step is more than one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor, nn

from bakeoff.interfaces.objective import Terms


def weighed_apart(terms: Terms) -> dict[str, Tensor]:
    """The sums of the terms that do not share the weight (the very tensor) of the first one."""
    leading = next(iter(terms.values()))[1]
    return {name: total for name, (total, weight) in terms.items() if weight is not leading}


def added_gradients(total: Tensor, parameters: Items[nn.Parameter], held: Items[Tensor | None]) -> list[Tensor | None]:
    """Gradients of `total`, which can be differentiated once more, added to what is `held`; None: there is none."""
    new = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
    return [b if a is None else a if b is None else a + b for a, b in zip(held, new, strict=True)]
