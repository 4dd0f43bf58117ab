"""Recurrent networks as mixers."""

from bakeoff_rnn.lstm import LSTM
from bakeoff_rnn.min_gru import MinGRU
from bakeoff_rnn.mlstm import MLSTM
from bakeoff_rnn.multiplicative_lstm import MultiplicativeLSTM
from bakeoff_rnn.slstm import SLSTM

BAKEOFF_API = 1

__all__ = ["LSTM", "MLSTM", "SLSTM", "MinGRU", "MultiplicativeLSTM"]
