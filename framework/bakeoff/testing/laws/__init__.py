"""The laws, one file each; importing this package makes all of them known."""

from bakeoff.testing.laws import (
    call,
    causality,
    compiling,
    cost,
    documents,
    initialisation,
    numbers,
    padding,
    parallel,
    round_trip,
    split,
    state,
)  # fmt: skip

__all__ = [
    "call", "causality", "compiling", "cost", "documents", "initialisation", "numbers", "padding", "parallel",
    "round_trip", "split", "state",
]  # fmt: skip
