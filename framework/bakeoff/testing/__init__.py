"""The conformance kit: the laws that a component keeps, checked by one call.

    bakeoff.testing.check("my_idea").raise_for_failures()

`cases` gives one pytest parameter for each component of a package. A recipe's own model: `check_model`, `causality_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bakeoff.testing.checking import check
from bakeoff.testing.models import causality_of, check_model
from bakeoff.testing.report import Finding, LawFailure, Report

if TYPE_CHECKING:
    from bakeoff.testing.parameters import cases

__all__ = ["Finding", "LawFailure", "Report", "cases", "causality_of", "check", "check_model"]


def __getattr__(name: str) -> Any:
    if name != "cases":
        raise AttributeError(f"module 'bakeoff.testing' has no attribute {name!r}")
    from bakeoff.testing.parameters import cases  # needs pytest

    return cases
