"""The record of a run, and any of its batches made again without a Trainer."""
