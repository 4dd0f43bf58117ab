"""The outcome in plain words, before any number is looked up."""

from __future__ import annotations

from collections.abc import Sequence as Items

from bakeoff.compare.results import Results
from bakeoff.compare.words import plural

#: More names than these are counted.
NAMED = 4

#: Kinds of verdict that rest on an interval.
CLEAR = ("better", "worse", "none shown")


def headline(results: Results) -> tuple[str, str]:
    """What may be said first, and the rest, in sentences."""
    base = results.baseline.name
    groups = _groups(results)
    if base not in results.quality:
        return f"Nothing can be compared: the baseline {base} has no result.", ""
    if "one seed" in groups:
        return "No verdict: with one seed, chance alone may explain any difference.", _missing(groups)
    by_mean = {kind: sorted(groups.get(kind, []), key=lambda name: _mean(results, name)) for kind in CLEAR}
    better, worse, unknown = (by_mean[kind] for kind in CLEAR)
    if better:
        first, rest = f"{better[0]} is {results.verdicts[better[0]].text}.", _also(better[1:])
    else:
        first, rest = f"No arm is shown to beat {base}.", []
        if held := unknown or worse:
            rest = [f"{held[0]} comes nearest: {results.verdicts[held[0]].text}."]
            held.pop(0)
    if worse:
        rest.append(f"{listed(worse)} {_is(worse)} worse than {base}.")
    if unknown:
        rest.append(f"No difference to {base} is shown for {listed(unknown)}.")
    return first, " ".join([*rest, _missing(groups)]).strip()


def listed(names: Items[str]) -> str:
    """a, b and c; or how many there are."""
    if len(names) > NAMED:
        return plural(len(names), "arm")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _groups(results: Results) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, verdict in results.verdicts.items():
        groups.setdefault(verdict.kind, []).append(name)
    return groups


def _mean(results: Results, name: str) -> float:
    difference = results.differences[name]
    return difference.mean if difference else 0.0


def _also(names: Items[str]) -> list[str]:
    means = "a smaller mean" if len(names) == 1 else "smaller means"
    return [f"{listed(names)} {_is(names)} better too, by {means}."] if names else []


def _is(names: Items[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _missing(groups: dict[str, list[str]]) -> str:
    lines = []
    for kind, words in (
        ("other text", "not compared: validated on other text than the baseline"),
        ("refused", "refused before training"),
        ("failed", "without a result"),
        ("waiting", "not run yet"),
    ):
        if names := groups.get(kind):
            lines.append(f"{listed(names)} {_is(names)} {words}.")
    if names := groups.get("no pair"):
        lines.append(f"{listed(names)} {'has' if len(names) == 1 else 'have'} no seed in common with the baseline.")
    return " ".join(lines)
