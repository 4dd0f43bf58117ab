"""Dialogues as a recipe's data: encoded once, packed into rows, and made into batches."""
