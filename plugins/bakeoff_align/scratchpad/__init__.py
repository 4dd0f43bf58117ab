"""Exercises whose intermediate steps are written down before the answer (Nye et al. 2021), without end."""
