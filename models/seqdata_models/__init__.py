"""Reference models for seqdata, to read, train and copy; they use only its public names."""

from seqdata_models.byte_lm import ByteLM
from seqdata_models.forecaster import Forecaster
from seqdata_models.functional import last_valid, masked_mean, masked_token_loss
from seqdata_models.lstm_classifier import LSTMClassifier
from seqdata_models.lstm_forecaster import LSTMForecaster
from seqdata_models.lstm_recognizer import LSTMRecognizer
from seqdata_models.lstm_tagger import LSTMTagger
from seqdata_models.seq2seq_lstm import Seq2SeqLSTM
from seqdata_models.stateful_lm import StatefulLM
from seqdata_models.stateful_tagger import StatefulTagger

__all__ = [
    "ByteLM",
    "Forecaster",
    "LSTMClassifier",
    "LSTMForecaster",
    "LSTMRecognizer",
    "LSTMTagger",
    "Seq2SeqLSTM",
    "StatefulLM",
    "StatefulTagger",
    "last_valid",
    "masked_mean",
    "masked_token_loss",
]
