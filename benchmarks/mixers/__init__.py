"""Recurrent and linear-attention mixers on one core."""
