"""Tables with a row per timestep, and what they are as sequences."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet


def sales(lengths=(5, 3, 9), seed=0):
    """A table of hours, in order: numbers of all kinds, constants, strings that change."""
    random = np.random.default_rng(seed)
    parts = []
    for number, length in enumerate(lengths):
        parts.append(
            pd.DataFrame(
                {
                    "series": f"s{number}",
                    "time": pd.date_range("2024-01-01", periods=length, freq="h", unit="us"),
                    "load": random.standard_normal(length).astype(np.float32),
                    "count": random.integers(0, 100, length).astype(np.int16),
                    "open": np.arange(length) % 2 == 0,
                    "event": random.choice(["a", "b", "c"], length),
                    "store": f"store {number % 2} é",
                    "area": np.float64(10 + number),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def shuffle(frame, seed=0):
    """The rows of a frame in another order."""
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def write(frame, path, rows=4):
    """Write a frame as Parquet, in row groups of few rows."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return path


def alike(store, expected):
    """Return whether two stores hold the same: fields, ids and all values, bit by bit."""
    assert dict(store.fields) == dict(expected.fields)
    assert store.keys(range(len(store))) == expected.keys(range(len(expected)))
    assert store.lengths.tolist() == expected.lengths.tolist()
    for found, wanted in zip(store, expected, strict=True):
        for name, value in dict(wanted).items():
            assert np.asarray(found[name]).dtype == np.asarray(value).dtype, name
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    return True
