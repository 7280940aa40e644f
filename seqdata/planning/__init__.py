"""What policies are made of: randomness, items, blocks and the order of batches. Numpy only."""
