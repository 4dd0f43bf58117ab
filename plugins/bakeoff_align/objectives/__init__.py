"""What models learn from what is thought of their answers."""
