"""Tokenizers that ship with the core."""
