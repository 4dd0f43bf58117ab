"""Comparisons: arms side by side, matched, paired and judged. `bakeoff.compare(file)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bakeoff._callable import make_callable

if TYPE_CHECKING:
    from bakeoff.compare.compared import Compared
    from bakeoff.compare.runner import compare

__all__ = ["Compared", "compare"]


def __getattr__(name: str) -> Any:
    if name == "compare":
        from bakeoff.compare.runner import compare

        return compare
    if name == "Compared":
        from bakeoff.compare.compared import Compared

        return Compared
    raise AttributeError(f"module 'bakeoff.compare' has no attribute {name!r}")


make_callable(__name__)
