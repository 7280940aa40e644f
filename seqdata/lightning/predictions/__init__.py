"""Predictions, written back by id: outputs, spill files, the merge of all ranks."""
