"""Samples of many test modules: batches, transforms and threads of the library."""

import threading

import numpy as np

from seqdata import Fixed, Loader
from seqdata_testing.waiting import until


def collate_three_rows(collator):
    """Return a batch of the rows 3, 3, 3; 2, 2; and 4, 4, 4, 4."""
    rows = [{"x": np.full(n, n, "f4")} for n in (3, 2, 4)]
    return next(iter(Loader(rows, Fixed(3, shuffle=False), collator=collator)))


def add_noise(sequence, rng):
    """Add ``r``, by which a draw can be known again."""
    return {**sequence, "r": np.array([rng.integers(1 << 40)])}


add_noise.axes = {"r": None}


def list_prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "seqdata-prefetch"]


def prefetch_threads_end():
    """Return whether all threads end by themselves."""
    return until(lambda: not list_prefetch_threads())
