"""A transform for workers: what a worker unpickles it must import, and this needs no torch."""


def noisy(sequence, rng):
    """Add random numbers, which follow from the draw alone."""
    return {"x": sequence["x"] + rng.random(len(sequence["x"]))}
