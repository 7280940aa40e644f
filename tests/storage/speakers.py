"""A store of sequences by several speakers, for views and splits."""

import numpy as np

from seqdata.storage.memory import MemoryStore


def made(count, speakers=5):
    """Return a store of ``count`` sequences; sequence i has i timesteps."""
    rows = [
        {
            "id": f"u{i}",
            "x": np.full(i, i),
            "text": b"t" * (i + 1),
            "speaker": f"s{i % speakers}",
            "y": i % 3,
        }
        for i in range(count)
    ]
    return MemoryStore.from_sequences(rows, axes={"text": "text"})


def numbers(view):
    """Return the base's numbers of a view's sequences."""
    return view.numbers.tolist()
