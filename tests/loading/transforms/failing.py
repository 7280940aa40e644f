"""Transforms that fail, in a module of their own: a worker that unpickles one imports no torch."""

import os
import threading


def fails(sequence, rng):
    raise ValueError(f"no {sequence['id']}")


def hangs(sequence, rng):
    threading.Event().wait(600)


def dies(sequence, rng):
    os._exit(3)


def stops(sequence, rng):
    return next(iter(()))
