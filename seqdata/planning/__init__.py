"""The parts of policies: randomness, items, blocks and the order of batches. NumPy only."""
