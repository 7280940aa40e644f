"""An index of a shard, made by hand."""

from dataclasses import replace

import numpy as np

from seqdata.storage.indexed.shard_index import FieldIndex, ShardIndex


def make_int64(*values):
    return np.array(values, dtype=np.int64)


def make_index(sizes=(4, 0, 8), **changes):
    sizes = make_int64(*sizes)
    begins = np.cumsum(sizes) - sizes
    field = FieldIndex(
        begins, sizes, np.arange(len(sizes), dtype=np.uint32), None,
        heads=({"dtype": "<f4", "shape": [2], "axis": "time", "decoder": None},),
        numbers=sizes, values=np.ones((len(sizes), 2), np.float32),
    )  # fmt: skip
    keys = "".join(f"k{number % 10}" for number in range(len(sizes))).encode()
    index = ShardIndex(
        shard="a.recs", bytes=int(sizes.sum()), sha256="0" * 64, ends="1" * 64, last=0,
        algorithm="crc32", block=65536, keys=np.frombuffer(keys, np.uint8),
        key_ends=np.arange(len(sizes) + 1, dtype=np.int64) * 2, members={"x": field},
        declared={"x": ("x", "float32", (2,), "time")}, format_identity="m:Records() version 1",
        siblings={"a.ends": (3, "2" * 64)},
    )  # fmt: skip
    return replace(index, **changes)
