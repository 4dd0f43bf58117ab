"""What is fast and how fast: scripts that measure, run from the root of the repository."""
