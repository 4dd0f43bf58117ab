"""What depends on all tokens of rows, where ranks share the rows out."""

from __future__ import annotations

from collections.abc import Callable

from bakeoff.interfaces import Sequence
from bakeoff.parts.collectives import summed_for_each
from bakeoff.parts.spans import whole_row
from torch import Tensor


def noise_like(x: Tensor, sequence: Sequence, draw: Callable[[Tensor], Tensor]) -> Tensor:
    """What `draw` gives for (N, …) tokens, N = B T; a token's noise does not depend on which rank has it."""
    if sequence.spans is None:
        return draw(x)
    whole = x.new_empty(sequence.batch * sequence.spans.length, *x.shape[1:])
    return _own(draw(whole), sequence)


def chosen_of_all(values: Tensor, sequence: Sequence, choose: Callable[[Tensor, Sequence], Tensor]) -> Tensor:
    """`choose(values, sequence)`, which takes (N, …) of all tokens of the rows and gives (N, k): what it gives for
    those that stand here. `values`, which need no gradient, are of these."""
    if sequence.spans is None:
        return choose(values, sequence)
    whole = whole_row(values.detach().unflatten(0, (sequence.batch, -1)), sequence.spans)
    return _own(choose(whole.flatten(0, 1), sequence.spans.whole), sequence)


def row_sums(own: Tensor, sequence: Sequence) -> Tensor:
    """Sums over all tokens of each row, of those over the tokens that stand here."""
    return own if sequence.spans is None else summed_for_each(own, sequence.spans.group)


def _own(whole: Tensor, sequence: Sequence) -> Tensor:
    """(B S, …) of all tokens -> (B T, …) of those that stand here."""
    assert sequence.spans is not None
    return sequence.spans.take(whole.unflatten(0, (sequence.batch, -1))).flatten(0, 1)
