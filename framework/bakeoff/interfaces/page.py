"""Kind `page`: a section that a plugin adds to the report of a comparison."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from bakeoff.interfaces.component import Component


class Page(Component):
    """One section of the report."""

    kind = "page"
    title: str
    tasks: ClassVar[tuple[str, ...]] = ()
    """Tasks whose HTML it shows; their own sections then hold figures only."""

    @abstractmethod
    def html(self, comparison: Any) -> str:
        """The section's body: HTML that stands by itself, without scripts from elsewhere; "" for no section."""
