"""Objectives that learn from what was preferred: pairs of completions, or single ones that are desirable or not."""
