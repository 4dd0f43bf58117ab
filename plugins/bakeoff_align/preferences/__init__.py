"""How well a model tells what is preferred."""
