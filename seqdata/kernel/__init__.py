"""The kernel, which copies spans into a batch: in C, in NumPy, and the choice between them."""
