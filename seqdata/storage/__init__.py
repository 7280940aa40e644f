"""Storage of sequences on disk and in memory, and reading of spans of them."""
