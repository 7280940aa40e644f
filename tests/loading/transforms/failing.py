"""Transforms that fail, in a module of their own: a worker that unpickles one imports no torch."""

import os


def fails(sequence, rng):
    raise ValueError(f"no {sequence['id']}")


def dies(sequence, rng):
    os._exit(3)


def stops(sequence, rng):
    return next(iter(()))
