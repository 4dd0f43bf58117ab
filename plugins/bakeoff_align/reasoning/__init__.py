"""Whether a model answers better when it thinks aloud, and how far what it has learnt carries."""
