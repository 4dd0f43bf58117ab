"""Models that learn to tell good answers from bad ones."""
