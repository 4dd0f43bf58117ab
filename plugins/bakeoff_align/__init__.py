"""Models that learn from what is thought of their answers: fine-tuning, rewards, preferences, policies, reasoning."""

BAKEOFF_API = 1
