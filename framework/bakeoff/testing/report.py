"""What the kit found: one finding a law, and a report that reads well in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "not claimed", "not applicable"]

_MARKS: dict[Status, str] = {"passed": "ok  ", "failed": "FAIL", "not claimed": "-   ", "not applicable": "-   "}


class LawFailure(AssertionError):
    """A component breaks a law; the message is the report's failures."""


@dataclass(frozen=True)
class Finding:
    """What one law says of one component.

    Attributes
    ----------
    law : the law's name; `number` is its number in the documentation, or None for a check of one kind alone.
    status : passed, failed, not claimed (the class does not promise it) or not applicable.
    reason : why it was not tested; for a failure, mode and smallest input that shows it.
    arguments : the constructor arguments that it was found with.
    """

    law: str
    number: int | None
    status: Status
    reason: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        number = "  " if self.number is None else f"{self.number:2d}"
        untested = f"{self.status}: " if self.status.startswith("not") else ""
        return f"  {_MARKS[self.status]} {number} {self.law:<15} {untested}{self.reason}".rstrip()


@dataclass(frozen=True)
class Report:
    """All findings on one component; true if no law is broken."""

    component: str
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The laws that are broken."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    @property
    def ok(self) -> bool:
        """Whether no law is broken."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.ok

    def raise_for_failures(self) -> None:
        """Raise `LawFailure`, naming law, mode and smallest input, if any law is broken."""
        if self.failures:
            raise LawFailure(_listing(f"{self.component} breaks {_laws(self.failures)}", self.failures))

    def __str__(self) -> str:
        verdict = "keeps every law that applies" if self.ok else f"breaks {_laws(self.failures)}"
        return _listing(f"{self.component} {verdict}", self.findings)


def _laws(failures: tuple[Finding, ...]) -> str:
    names = list(dict.fromkeys(finding.law for finding in failures))
    return f"the law{'s' if len(names) > 1 else ''} of {', '.join(names)}"


def _listing(title: str, findings: tuple[Finding, ...]) -> str:
    lines, shown = [title], None
    for finding in findings:
        if finding.arguments != shown:
            shown = finding.arguments
            lines.append(f" with {written(shown)}" if shown else " with no arguments")
        lines.append(str(finding))
    return "\n".join(lines)


def written(arguments: Any) -> str:
    """Arguments as they would stand in a recipe."""
    if isinstance(arguments, Mapping):
        return "{" + ", ".join(f"{key}: {written(value)}" for key, value in arguments.items()) + "}"
    if isinstance(arguments, (list, tuple)):
        return "[" + ", ".join(map(written, arguments)) + "]"
    if arguments is None or isinstance(arguments, bool):
        return {None: "null", True: "true", False: "false"}[arguments]
    return getattr(arguments, "__name__", str(arguments))
