"""A batch, what it is made of, and what may be asked of it."""

from seqdata.batch.batch import SequenceBatch, batch_size_fn, length_fn

__all__ = ["SequenceBatch", "batch_size_fn", "length_fn"]
