"""Stores over Arrow, Feather and Parquet files that seqdata did not write."""
