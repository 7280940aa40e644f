"""What commands print: batches, statistics, plots of padding and lanes."""
