"""What `reasoning-gym` asks, and how it judges answers: its generators by name, settings and seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

from bakeoff.errors import MissingExtra, UserError

PACKAGE, EXTRA = "reasoning_gym", "reason"

#: Tasks some of whose questions are other ones in each process: they depend on how Python hashes texts, or on random
#: numbers that others draw from as well.
UNSTEADY = frozenset(
    {
        "codeio", "intermediate_integration", "isomorphic_strings", "knight_swap", "list_functions",
        "polynomial_multiplication", "ransom_note", "word_ladder",
    }
)  # fmt: skip

#: Entries that are kept.
KEPT = 4096


class Source(NamedTuple):
    """Where an entry comes from: all that makes it again. `config` is a JSON object."""

    task: str
    config: str
    size: int
    seed: int


def required(what: str) -> None:
    """`MissingExtra` that names `what` where the package is not installed; it is not imported."""
    if find_spec(PACKAGE) is None:
        raise MissingExtra(what, EXTRA)


def installed() -> str:
    """The package's version."""
    return version(PACKAGE)


def source(task: str, config: Mapping[str, Any], size: int, seed: int) -> Source:
    """Names and settings, checked; `UserError` where the package does not take them."""
    known = import_module(f"{PACKAGE}.factory").DATASETS
    if task not in known:
        near = ", ".join(get_close_matches(task, known, 3)) or "none"
        raise UserError(f"corpus 'reasoning_gym': no task is called '{task}'; near: {near}; there are {len(known)}")
    if task in UNSTEADY:
        raise UserError(
            f"corpus 'reasoning_gym': questions of '{task}' are other ones in each process, as they depend on "
            "more than their seed: choose another task"
        )
    for name, instead in (("size", "count"), ("seed", "seed")):
        if name in config:
            raise UserError(f"corpus 'reasoning_gym': config holds '{name}'; write `{instead}` beside config instead")
    made = Source(task, json.dumps(config, sort_keys=True), size, seed)
    dataset(made)
    return made


@lru_cache(64)
def dataset(made: Source) -> Any:
    """The package's own object."""
    given = json.loads(made.config)
    try:
        return import_module(PACKAGE).create_dataset(made.task, size=made.size, seed=made.seed, **given)
    except Exception as error:  # each generator checks its settings in its own way
        raise UserError(
            f"corpus 'reasoning_gym': the task '{made.task}' refuses config {given}: {type(error).__name__}: {error}"
        ) from error


def entry(made: Source, index: int) -> dict[str, Any]:
    """Question, answer, and what the scorer needs; the caller's own."""
    return deepcopy(_entry(made, index))


@lru_cache(KEPT)
def _entry(made: Source, index: int) -> dict[str, Any]:
    return dataset(made)[index]


def tagged(text: str, tag: str) -> str | None:
    """What stands between the last <tag> and </tag>, as the package finds it."""
    return import_module(f"{PACKAGE}.utils").extract_answer(text, tag)
