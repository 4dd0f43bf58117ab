"""Language models that look up the hidden states that came before the like words in a text that they know."""
