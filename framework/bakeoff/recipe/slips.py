"""All that is wrong with a recipe, gathered, and told at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bakeoff.errors import RecipeError
from bakeoff.recipe.places import place_of

#: Slips that one message lists.
MOST = 30


@dataclass(frozen=True)
class Slip:
    """One thing that is wrong. `key` is set for an unknown key that nothing near it resembles."""

    path: str
    message: str
    key: str | None = None


def near(word: str, known: Iterable[str]) -> str:
    """What a message ends with where a known word resembles this one: the question whether it was meant."""
    found = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.6)
    return f"; did you mean '{found[0]}'?" if found else ""


def lines(slips: Iterable[Slip], places: Mapping[str, str], valid: Mapping[str, Iterable[str]]) -> list[str]:
    """One line a slip, with its place.

    `valid` maps each path to the keys it could have held: a key that belongs elsewhere is shown where.
    """
    found = []
    for slip in slips:
        place = place_of(places, slip.path)
        where = f"{slip.path} ({place})" if place else slip.path
        found.append(f"{where}: {slip.message}{_elsewhere(slip, valid)}")
    return found


def report(found: list[str], name: str) -> None:
    """Raise one `RecipeError` of all lines, or of the first `MOST`; nothing if there is none."""
    if len(found) == 1:
        raise RecipeError(found[0])
    if found:
        more = [f"and {len(found) - MOST} more"] if len(found) > MOST else []
        raise RecipeError(f"{name} has {len(found)} slips:\n  " + "\n  ".join([*found[:MOST], *more]))


def _elsewhere(slip: Slip, valid: Mapping[str, Iterable[str]]) -> str:
    if slip.key is None:
        return ""
    homes = sorted({f"{path}.{slip.key}".lstrip(".") for path, keys in valid.items() if slip.key in keys}, key=len)
    return f"; did you mean '{homes[0]}'?" if homes else ""
