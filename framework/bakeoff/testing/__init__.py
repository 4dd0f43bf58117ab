"""The conformance kit: the laws that a component keeps, checked by one call.

bakeoff.testing.check("my_idea").raise_for_failures()
"""

from bakeoff.testing.checking import check
from bakeoff.testing.report import Finding, LawFailure, Report

__all__ = ["Finding", "LawFailure", "Report", "check"]
