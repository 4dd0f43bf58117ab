"""What the search stands on, imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bakeoff.errors import MissingExtra


def required(package: str, what: str) -> None:
    """`MissingExtra` that names `what` where a package is not installed; it is not imported."""
    if find_spec(package) is None:
        raise MissingExtra(what, "retrieval")


def faiss(what: str) -> Any:
    """The module `faiss`; `MissingExtra` that names `what` needs it."""
    return _imported("faiss", what)


def bm25s(what: str) -> Any:
    """The module `bm25s`."""
    return _imported("bm25s", what)


def transformers(what: str) -> Any:
    """The module `transformers`."""
    return _imported("transformers", what)


def _imported(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(what, "retrieval") from error
