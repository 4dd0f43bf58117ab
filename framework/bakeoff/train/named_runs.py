"""Finished runs that a recipe names by their folders: what counts is the weights that stand there, not the path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bakeoff.parts.files import expanded, read_sealed
from bakeoff.train.folder import RunFolder


def named_runs(values: Any) -> dict[str, str]:
    """By each text in a nest of plain values that names the folder of a finished run: 12 digits of its weights."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple):
        return {path: digest for value in values for path, digest in named_runs(value).items()}
    if not isinstance(values, str) or not os.path.isdir(os.path.expanduser(values)):
        return {}
    place = RunFolder(expanded(values))
    if not (place.recipe.is_file() and place.summary.is_file()):
        return {}
    return {values: f"weights {read_sealed(place.summary)['files'][place.weights.name][:12]}"}


def by_content(values: Any, digests: Mapping[str, str] | None = None) -> Any:
    """A nest of plain values with `digests` in the place of the texts that have one; None: those of `named_runs`."""
    known = named_runs(values) if digests is None else digests
    if isinstance(values, Mapping):
        return {key: by_content(value, known) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [by_content(value, known) for value in values]
    return known.get(values, values) if isinstance(values, str) else values
