"""How sequences lie on disk and in memory, and how spans of them are read."""
