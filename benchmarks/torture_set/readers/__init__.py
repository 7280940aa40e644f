"""One module per library: how it writes the set, and how it reads it, as its own guide does."""
