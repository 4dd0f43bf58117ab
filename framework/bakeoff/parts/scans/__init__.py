"""Recurrences along the sequence that several mixers share, as functions of tensors."""
