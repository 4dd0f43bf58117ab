"""Arms made equal to the baseline in size, work or state, by one setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bakeoff.compare.words import percent
from bakeoff.errors import UserError
from bakeoff.model.cost import Plan, plan
from bakeoff.recipe import Recipe
from bakeoff.recipe.comparing import Match
from bakeoff.recipe.demands import outlined

#: Settings are tried in multiples of this, as matrix products like them, and singly only where that is not near enough.
UNIT = 8
#: No setting is made greater than this.
GREATEST = 2**20

AMOUNTS: dict[str, Callable[[Plan], float | None]] = {
    "parameters": lambda costs: costs.parameters.without_embeddings,
    "active_parameters": lambda costs: costs.parameters.active_without_embeddings,
    "flops": lambda costs: costs.whole.flops,
    "state": lambda costs: costs.whole.state,
}


@dataclass(frozen=True)
class Matched:
    """What matching did to one arm; `value` is None where the arm was left as it stands."""

    by: str
    knob: str | None
    value: int | None
    target: float
    reached: float

    @property
    def error(self) -> float:
        """Relative to the target."""
        return (self.reached - self.target) / self.target if self.target else 0.0


def costs_of(recipe: Recipe, vocabulary: int) -> Plan:
    """What the recipe's model costs at the length of its data; nothing is allocated."""
    length = recipe.tree["data"]["length"]
    return plan(outlined(recipe, vocabulary, max_length=length), length)


def amount(by: str, costs: Plan, arm: str) -> float:
    """What arms are made equal in. Raises `UserError` where a part does not declare it."""
    found = AMOUNTS[by](costs)
    if found is None:
        raise UserError(f"match.by is {by}, but arm {arm} cannot tell it: {'; '.join(costs.notes)}")
    return found


def match(arm: str, recipe: Recipe, rule: Match, target: float, vocabulary: int) -> tuple[Recipe, Matched]:
    """The arm's recipe with the setting that brings it nearest to `target`, and what was reached.

    An arm that stands at the target, or that no value brings nearer, is left as it is. Raises `UserError` naming the
    nearest value if the tolerance is not reached.
    """

    def measure(value: int) -> float:
        return amount(rule.by, costs_of(recipe.override(changes(value)), vocabulary), arm)

    paths = recipe.paths_ending(rule.adjust) if rule.adjust else []

    def changes(value: int) -> dict[str, int]:
        return dict.fromkeys(paths, value)

    own = amount(rule.by, costs_of(recipe, vocabulary), arm)
    best = Matched(rule.by, rule.adjust, None, target, own)
    if own != target and paths:
        value, reached = nearest(measure, target, rule.within)
        if abs(reached - target) < abs(own - target):
            best = Matched(rule.by, rule.adjust, value, target, reached)
    if abs(best.error) > rule.within:
        raise UserError(_too_far(arm, rule, best, bool(paths)))
    return recipe if best.value is None else recipe.override(changes(best.value), "matching"), best


def nearest(measure: Callable[[int], float], target: float, within: float) -> tuple[int, float]:
    """The number whose growing `measure` is nearest to target, and that; a multiple of `UNIT` if one is near enough."""
    low, high = 0, 1
    while high * UNIT < GREATEST and measure(high * UNIT) < target:
        low, high = high, 2 * high
    units = _between(lambda n: measure(n * UNIT), low, high, target)
    found = _best([n * UNIT for n in units if n > 0], measure, target)
    if abs(found[1] - target) > within * target:
        singly = _between(measure, units[0] * UNIT, units[1] * UNIT, target)
        found = _best([n for n in singly if n > 0], measure, target)
    return found


def _between(measure: Callable[[int], float], low: int, high: int, target: float) -> tuple[int, int]:
    """Neighbouring numbers from `low` to `high` on the two sides of the target."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measure(middle) < target else (low, middle)
    return low, high


def _best(values: list[int], measure: Callable[[int], float], target: float) -> tuple[int, float]:
    measured = [(value, measure(value)) for value in values]
    return min(measured, key=lambda pair: abs(pair[1] - target))


def _too_far(arm: str, rule: Match, best: Matched, has_knob: bool) -> str:
    what = f"match.by {rule.by}: arm {arm} has {best.reached:,.0f}, the baseline {best.target:,.0f}"
    off = f"{percent(best.error, 2, sign=True)} where match.within allows {percent(rule.within)}"
    if rule.adjust is None:
        return f"{what}, {off}; name the setting that may be adjusted, as in match.adjust: feed_forward.width"
    if not has_knob:
        return f"{what}, {off}; nothing in the arm is called '{rule.adjust}'"
    with_ = f" with {rule.adjust} = {best.value}" if best.value is not None else " as it stands"
    return f"{what}, {off}; that is the nearest{with_}. Adjust another setting, or widen match.within"


def as_facts(matched: Matched) -> dict[str, Any]:
    """For the store."""
    return {
        "by": matched.by,
        "knob": matched.knob,
        "value": matched.value,
        "target": matched.target,
        "reached": matched.reached,
        "error": matched.error,
    }
