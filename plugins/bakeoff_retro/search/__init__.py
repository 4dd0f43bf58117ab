"""Embedders, and searches among the chunks of a database."""
