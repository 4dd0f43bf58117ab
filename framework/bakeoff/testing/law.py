"""What a law is: a function that returns if it is kept and raises `Broken`, `NotClaimed` or `NotApplicable` if not."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from bakeoff.errors import CapabilityError

if TYPE_CHECKING:
    from bakeoff.testing.candidate import Candidate
    from bakeoff.testing.subject import Subject

#: Seconds that the search for a smaller input may take, once a law is known to be broken.
SEARCH_SECONDS = 2.0

#: Kinds that map (B, T, D) along a sequence.
SEQUENCE_KINDS = ("mixer", "feed_forward", "block", "backbone")
#: Kinds that are tested in the smallest part that calls them.
HOSTED_KINDS = ("attention_op", "position", "norm", "router")
#: Kinds that are modules.
PART_KINDS = (*SEQUENCE_KINDS, *HOSTED_KINDS, "head")

C = TypeVar("C")


class Broken(Exception):
    """The law is broken; the message names the mode and the smallest input that shows it."""


class Raised(Broken):
    """A part raised an error when it was called; the message names the size of its input."""


class NotClaimed(Exception):
    """The class does not promise this; the message names the capability."""


class NotApplicable(Exception):
    """There is nothing to test; the message says why."""


@dataclass(frozen=True)
class Law:
    """One law: its number in the documentation (None for a check of one kind alone), name, and test.

    `claims`: capabilities, or `flops`, of which a class must promise one for the law to be tested; none: it always is.
    """

    number: int | None
    name: str
    kinds: frozenset[str]
    test: Callable[[Candidate], None]
    slow: bool = False
    claims: tuple[str, ...] = ()

    @property
    def demand(self) -> str:
        """What must hold, in a sentence or two."""
        return inspect.getdoc(self.test) or ""


LAWS: list[Law] = []


def law(
    number: int | None, name: str, *kinds: str, slow: bool = False, claims: tuple[str, ...] = ()
) -> Callable[[C], C]:
    """Register a test of the kit for components of `kinds`; its docstring is what the law demands."""

    def wrap(test: C) -> C:
        LAWS.append(Law(number, name, frozenset(kinds), test, slow, claims))  # type: ignore[arg-type]
        return test

    return wrap


def sequence_law(
    number: int | None, name: str, *, hosted: bool = True, slow: bool = False, claims: tuple[str, ...] = ()
) -> Callable[[C], C]:
    """Register a test of mixers, feed-forwards, blocks and backbones, called with the `Subject`.

    `hosted`: also of what stands inside one, such as a norm, tested in its place.
    """
    kinds = (*SEQUENCE_KINDS, *HOSTED_KINDS) if hosted else (*SEQUENCE_KINDS, "router")

    def wrap(test: C) -> C:
        @law(number, name, *kinds, slow=slow, claims=claims)
        @wraps(test)  # type: ignore[arg-type]
        def of_candidate(candidate: Candidate) -> None:
            if claims and not any(_promises(candidate.subject, claim) for claim in claims):
                raise NotClaimed(", ".join(claims))
            test(candidate.subject)  # type: ignore[operator]

        return test

    return wrap


def _promises(subject: Subject, claim: str) -> bool:
    """Whether a part claims a capability or, for `flops`, declares its cost."""
    if claim != "flops":
        return getattr(subject.claims, claim)
    try:
        subject.module.flops(1, 1)
    except CapabilityError:
        return False
    return True


def laws_for(kind: str, wanted: Iterable[int | str] | None, *, slow: bool) -> list[Law]:
    """Laws of a kind, all or those `wanted` by number or name, those without a number first.

    Raises `ValueError` if a wanted law does not exist.
    """
    known = {name for law_ in LAWS for name in (law_.name, law_.number)}
    chosen = None if wanted is None else list(wanted)
    for name in chosen or ():
        if name not in known:
            raise ValueError(f"no law is called {name!r}; laws: {', '.join(sorted({law_.name for law_ in LAWS}))}")
    found = [
        law_
        for law_ in LAWS
        if kind in law_.kinds
        and (slow or not law_.slow)
        and (chosen is None or law_.name in chosen or law_.number in chosen)
    ]
    return sorted(found, key=lambda law_: law_.number or 0)


def first_slip(shows: Callable[..., str | None], cases: Iterable[tuple]) -> str | None:
    """The message of the first case that shows a slip, or None."""
    for case in cases:
        try:
            message = shows(*case)
        except Raised as error:
            message = str(error)
        if message is not None:
            return message
    return None


def hold(mode: str, shows: Callable[..., str | None], cases: Iterable[tuple], smaller: Iterable[tuple]) -> None:
    """Raise `Broken` if one of `cases` shows a slip, with the first that one of `smaller`, smallest first, shows."""
    found = first_slip(shows, cases)
    if found is None:
        return
    deadline = time.monotonic() + SEARCH_SECONDS
    in_time = takewhile(lambda _: time.monotonic() < deadline, smaller)
    raise Broken(f"{mode}: {first_slip(shows, in_time) or found}")
