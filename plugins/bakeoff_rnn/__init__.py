"""Recurrent networks as mixers."""

from bakeoff_rnn.lstm import LSTM

BAKEOFF_API = 1

__all__ = ["LSTM"]
