"""The tasks that ship with the core."""
