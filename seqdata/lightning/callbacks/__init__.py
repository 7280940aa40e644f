"""Callbacks that a user drops into a Trainer: they watch, and change nothing."""
