"""What attention gives in a chunk, kept so that running the chunk anew does not compute it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Attended = tuple[Tensor, Tensor]


class Kept:
    """The results of the attention ops of one run of a chunk, in the order of the calls."""

    def __init__(self) -> None:
        self.results: list[Attended] = []

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Inside, `attended` computes and keeps."""
        token = _current.set(self._keep)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def giving(self) -> Iterator[None]:
        """Inside, `attended` gives what was kept, from the first call on."""
        results = iter(self.results)
        token = _current.set(lambda compute: _apart(next(results)))
        try:
            yield
        finally:
            _current.reset(token)

    def _keep(self, compute: Callable[[], Attended]) -> Attended:
        found = compute()
        self.results.append(_apart(found))
        return found


def attended(compute: Callable[[], Attended]) -> Attended:
    """`(out, log-sum-exp)`, computed or, where a chunk runs anew, as it was kept. Autograd records nothing of it."""
    return _current.get()(compute)


def _apart(found: Attended) -> Attended:
    """The same memory, in tensors that are no graph's."""
    out, total = found
    return out.detach(), total.detach()


def _computed(compute: Callable[[], Attended]) -> Attended:
    return compute()


_current: ContextVar[Callable[[Callable[[], Attended]], Attended]] = ContextVar("attended", default=_computed)
