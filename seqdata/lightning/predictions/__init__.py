"""Predictions as a store: outputs, spill files, and the merge of all ranks."""
