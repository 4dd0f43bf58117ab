"""`check`: every law that applies to a component, on every set of arguments that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import bakeoff.testing.laws  # noqa: F401 (makes the laws known)
from bakeoff.errors import MissingExtra
from bakeoff.registry import entry, find, name_of
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, Law, NotApplicable, NotClaimed, laws_for
from bakeoff.testing.report import Finding, Report


def check(
    component: str | Callable[..., Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    kind: str | None = None,
    laws: Iterable[int | str] | None = None,
    quick: bool = True,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Report:
    """Run the laws of a component's kind.

    Parameters
    ----------
    component : a registered name, a class, or a factory that takes a `LayerContext` (then `kind` must be given).
    arguments : constructor arguments as in a recipe (`{use: NAME, …}` for a part); by default each set of `examples()`.
    laws : numbers or names; all by default.
    quick : leave out the laws that take long.
    device : where mixers, feed-forwards, blocks and backbones, and what is tested inside them, are called.

    Raises `ValueError` for an unknown law, or where the kind cannot be told.
    """
    make = find(component, kind) if isinstance(component, str) else component
    kind = entry(component).kind if isinstance(component, str) else kind or getattr(make, "kind", None)
    if kind is None:
        raise ValueError(f"{make!r} does not say what it is: give its kind, as in check(…, kind='mixer')")
    examples = [arguments] if arguments is not None else examples_of(make)
    chosen = laws_for(kind, laws, slow=not quick)
    findings: list[Finding] = []
    for example in examples:
        findings += judged(Candidate(make, kind, example, seed, device), chosen)
    return Report(_title(component, kind), tuple(findings))


def judged(candidate: Candidate, laws: Iterable[Law]) -> list[Finding]:
    """One finding a law."""
    missing = candidate.missing()
    if missing:
        reason = f"examples() leaves out required arguments: {', '.join(missing)}"
        return [Finding("schema", None, "failed", reason, candidate.arguments)]
    return [_finding(candidate, law) for law in laws]


def _finding(candidate: Candidate, law: Law) -> Finding:
    def found(status: Any, reason: object = "") -> Finding:
        return Finding(law.name, law.number, status, str(reason), candidate.arguments)

    try:
        law.test(candidate)
    except NotClaimed as claim:
        return found("not claimed", claim)
    except NotApplicable as reason:
        return found("not applicable", reason)
    except MissingExtra as missing:
        return found("not applicable", missing)
    except Broken as failure:
        return found("failed", failure)
    except Exception as error:  # a part that raises breaks the law that called it
        return found("failed", f"{type(error).__name__}: {error}")
    return found("passed")


def examples_of(make: Any) -> list[Mapping[str, Any]]:
    """The sets of arguments that a class names, or one without any for a factory."""
    return make.examples() if hasattr(make, "examples") else [{}]


def _title(component: Any, kind: str) -> str:
    name = (
        component
        if isinstance(component, str)
        else name_of(component) or getattr(component, "__qualname__", str(component))
    )
    return f"{kind} {name}"
