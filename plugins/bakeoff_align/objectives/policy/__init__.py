"""Objectives that learn from answers of the model itself."""
