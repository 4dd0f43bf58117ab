"""What attention gives in a chunk, kept so that running the chunk anew does not compute it again."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token

from torch import Tensor

Attended = tuple[Tensor, Tensor]
How = Callable[[Callable[[], Attended]], Attended]


def attended(compute: Callable[[], Attended]) -> Attended:
    """`(out, log-sum-exp)`, computed or, where a chunk runs anew, as it was kept; autograd is to record nothing."""
    return _how.get()(compute)


class Kept:
    """The results of the attention ops of one run of a chunk, in the order of the calls.

    Inside the context `keeping` they are computed and kept; inside `giving` they are given, from the first on.
    """

    def __init__(self) -> None:
        self.results: list[Attended] = []
        self.keeping, self.giving = _Inside(lambda: self._keep), _Inside(self._giver)

    def _keep(self, compute: Callable[[], Attended]) -> Attended:
        found = compute()
        self.results.append(_apart(found))
        return found

    def _giver(self) -> How:
        results = iter(self.results)
        return lambda compute: _apart(next(results))


class _Inside:
    """A context, as often as it is entered, inside which `attended` goes by what `begin` gives."""

    def __init__(self, begin: Callable[[], How]):
        self._begin = begin
        self._tokens: list[Token[How]] = []

    def __enter__(self) -> None:
        self._tokens.append(_how.set(self._begin()))

    def __exit__(self, *_: object) -> None:
        _how.reset(self._tokens.pop())


def _apart(found: Attended) -> Attended:
    """The same memory, in tensors that are no graph's."""
    out, total = found
    return out.detach(), total.detach()


_how: ContextVar[How] = ContextVar("attended", default=lambda compute: compute())
