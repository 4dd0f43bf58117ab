"""Before anything is trained, all ranks compare what they are about to do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from torch.distributed import Store

from bakeoff.errors import UserError
from bakeoff.parallel.member import Member

#: Seconds in which all ranks must have come, counted from the first one's coming.
PATIENCE = 300.0


class Disagreement(UserError):
    """The ranks were started with different recipes, code or folders; the message is the same on all of them."""


def agree(
    store: Store,
    member: Member,
    mine: Mapping[str, str],
    *,
    seconds: float = PATIENCE,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Return once every rank has described itself in the same words; all ranks call it.

    Parameters
    ----------
    mine : what must be equal on all ranks, by name.
    watch : called while waiting; may raise.

    Raises `Disagreement`, on all ranks, naming which rank differs in what, or which did not come.
    """
    store.set(_key(member.rank), json.dumps({"name": member.name, "values": dict(mine)}))
    _all_there(store, member, [_key(rank) for rank in range(member.size)], seconds, watch)
    told = [json.loads(value) for value in store.multi_get([_key(rank) for rank in range(member.size)])]
    read = [f"{_key(rank)}/read" for rank in range(member.size)]
    store.set(read[member.rank], "")
    if member.keeps_store:  # it must not end before the others have read
        _all_there(store, member, read, seconds, watch)
    names = [each["name"] for each in told]
    differing = difference(names, [each["values"] for each in told])
    if differing:
        listed = "\n".join(f"  {line}" for line in differing)
        raise Disagreement(f"the ranks of this run were not started alike, so none of them trains:\n{listed}")


def difference(names: list[str], values: list[Mapping[str, str]]) -> list[str]:
    """One line for each thing that is not the same on all ranks, with every value and who has it."""
    lines = []
    for what in dict.fromkeys(key for each in values for key in each):
        holders: dict[str, list[str]] = {}
        for name, each in zip(names, values, strict=True):
            holders.setdefault(each.get(what, "nothing"), []).append(name)
        if len(holders) > 1:
            lines.append(f"{what}: " + "; ".join(f"{value} on {_some(who)}" for value, who in holders.items()))
    return lines


def _all_there(store: Store, member: Member, keys: list[str], seconds: float, watch: Callable[[], None]) -> None:
    """Wait for all keys; the time runs once the first rank's is there."""
    deadline = None
    missing = list(keys)
    while missing:
        watch()
        missing = [key for key in missing if not store.check([key])]
        now = time.monotonic()
        if deadline is None and keys[0] not in missing:
            deadline = now + seconds
        if missing and deadline is not None and now > deadline:
            absent = ", ".join(str(rank) for rank, key in enumerate(keys) if key in missing)
            raise Disagreement(
                f"of {member.size} ranks, these did not come to {member.address}:{member.port} within "
                f"{seconds:.0f} s: {absent}"
            )
        if missing:
            time.sleep(0.1)


def _key(rank: int) -> str:
    return f"agreement/{rank}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
