"""Collators, which lay out ragged columns as tensors: one file per layout."""
