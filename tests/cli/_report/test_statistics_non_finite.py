"""Values that are not finite are counted by field, whole sequences or parts of long ones."""

import numpy as np

from seqdata.cli._report import statistics
from seqdata.cli._report.statistics import ValueCounts, count_float_bytes, count_values
from seqdata.storage.memory import MemoryStore

NAN, INF = np.nan, np.inf
STORE = MemoryStore.from_sequences(
    [
        {"x": np.array([[1.0, NAN], [INF, 2.0]]), "n": np.arange(2), "y": np.float32(1)},
        {"x": np.array([[1.0, 2.0]]), "n": np.arange(1), "y": np.float32(-INF)},
        {"x": np.array([[NAN, NAN], [1.0, 1.0], [-INF, 0]]), "n": np.arange(3), "y": np.float32(2)},
    ]
)


def test_each_floating_field_is_counted_and_no_other():
    assert count_values(STORE) == {"x": ValueCounts(3, 2, 2), "y": ValueCounts(0, 1, 1)}


def test_what_is_read_in_parts_has_the_same_values(monkeypatch):
    monkeypatch.setattr(statistics, "_CHUNK_TIMESTEPS", 2)
    monkeypatch.setattr(statistics, "_CHUNK_SEQUENCES", 1)
    counts = count_values(STORE)["x"]
    assert (counts.nan, counts.inf) == (3, 2)
    assert counts.sequences == 3  # the last one lies in two parts


def test_integers_are_not_read():
    store = MemoryStore.from_sequences([{"n": np.arange(3)}])
    assert count_values(store) == {}
    assert count_float_bytes(store) == 0


def test_bytes_are_those_of_floating_values():
    assert count_float_bytes(STORE) == 6 * 2 * 8 + 3 * 4
