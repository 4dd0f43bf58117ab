"""The laws, one file each; importing this package makes all of them known."""

from bakeoff.testing.laws import call, causality, documents, padding, split, state

__all__ = ["call", "causality", "documents", "padding", "split", "state"]
