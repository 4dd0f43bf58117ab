"""Corpora that ship with the core."""
