"""A store of some shards, and all that can be read of it; requests that fail for a while."""

import numpy as np

from seqdata import Remote, write_store
from seqdata_testing.faults import network
from seqdata_testing.waiting import patient

COUNT = 120
CONTENT = bytes(range(256)) * 64  # 16 KiB
PASSING = [network.unavailable, network.reset, network.short]


def sequences(count=COUNT):
    rng = np.random.default_rng(0)
    return [
        {
            "id": f"utt-{number}",
            "x": rng.normal(size=(int(length), 8)).astype(np.float32),
            "tokens": rng.integers(0, 99, int(length)).astype(np.int32),
            "label": number % 7,
            "text": "héllo" * (number % 4),
        }
        for number, length in enumerate(rng.integers(0, 120, count))
    ]


def write(folder, **options):
    options.setdefault("shard_bytes", 100_000)
    return write_store(folder, sequences(), **options)


def spans_of(store, numbers=None):
    numbers = np.arange(len(store)) if numbers is None else np.asarray(numbers)
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0], spans[:, 2] = numbers, store.lengths[numbers]
    return spans


def read_all(store, spans=None):
    """All pieces of all fields, as plain values; both ways to read a column."""
    spans = spans_of(store) if spans is None else spans
    found = {}
    for name, column in store.read(spans, list(store.fields)).items():
        if isinstance(column, list):
            found[name] = column
            continue
        pieces = [column[row].copy() for row in range(len(column))]
        bounds = np.append(0, np.cumsum(column.lengths))
        out = np.empty((int(bounds[-1]), *column.shape), dtype=column.dtype)
        column.fill(out, bounds, None)
        assert np.array_equal(out, np.concatenate(pieces))
        found[name] = [piece.tolist() for piece in pieces]
    return found


def make_quick_remote(tmp_path, **options):
    options = {"retry_seconds": patient(1.5), "stall_seconds": patient(1), **options}
    return Remote(cache_dir=tmp_path / "cache", **options)
