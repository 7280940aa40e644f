"""Output of commands: batches, statistics, plots of padding and lanes."""
