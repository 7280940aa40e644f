"""The copying of spans into a batch: a C file, its NumPy twin, and the choice between them."""
