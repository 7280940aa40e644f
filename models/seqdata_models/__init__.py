"""Reference models for seqdata, using its public names only: read them, train them, copy them."""

from seqdata_models.byte_lm import ByteLM
from seqdata_models.functional import last_valid, masked_mean, masked_token_loss
from seqdata_models.lstm_classifier import LSTMClassifier

__all__ = ["ByteLM", "LSTMClassifier", "last_valid", "masked_mean", "masked_token_loss"]
