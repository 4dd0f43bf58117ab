"""How good answers are: compared with what is right, by their form, or by what a trained model thinks of them."""
