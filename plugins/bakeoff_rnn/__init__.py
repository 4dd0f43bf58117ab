"""Recurrent networks as mixers."""

from bakeoff_rnn.lstm import LSTM
from bakeoff_rnn.min_gru import MinGRU
from bakeoff_rnn.mlstm import MLSTM
from bakeoff_rnn.multiplicative_lstm import MultiplicativeLSTM

BAKEOFF_API = 1

__all__ = ["LSTM", "MLSTM", "MinGRU", "MultiplicativeLSTM"]
