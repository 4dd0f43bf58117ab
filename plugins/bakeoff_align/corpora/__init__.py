"""Where conversations, preferences and questions come from."""
