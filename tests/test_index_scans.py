"""Passes over all sequences: how often each came before, and the values of a field."""

import numpy as np
import pytest

from seqdata import index_scans
from seqdata.errors import ConfigError
from seqdata.index_scans import count_earlier, read_values
from seqdata.storage.memory import MemoryStore


@pytest.fixture(params=[1, 3, 1 << 16])
def chunk(request, monkeypatch):
    """Chunks of any size: the results are the same."""
    monkeypatch.setattr(index_scans, "SCAN_CHUNK", request.param)


def earlier(numbers):
    numbers = np.array(numbers, dtype=np.int64)
    found = count_earlier(lambda positions: numbers[positions], len(numbers))
    return None if found is None else found.tolist()


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("numbers", [[], [4], [0, 1, 2, 3, 4, 5, 6], [1, 5, 9], [9, 1, 5], [2, 0]])
def test_where_each_sequence_occurs_once_nothing_is_counted(numbers):
    assert earlier(numbers) is None


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("numbers", [[3, 3], [0, 1, 1, 2], [5, 2, 5, 2, 2, 7, 5], [1, 2, 3, 3, 4]])
def test_each_occurrence_counts_those_before_it(numbers):
    assert earlier(numbers) == [numbers[:k].count(number) for k, number in enumerate(numbers)]


@pytest.mark.usefixtures("chunk")
def test_values_of_a_field_are_read_in_order():
    store = MemoryStore.from_sequences(
        [{"x": np.zeros(k), "y": k * 1.5, "id": f"u{k}"} for k in range(7)]
    )
    assert read_values(store, "y").tolist() == [k * 1.5 for k in range(7)]
    assert read_values(store, "id").tolist() == [f"u{k}" for k in range(7)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("yy", "index: no field 'yy'; did you mean 'y'"),
        ("zzz", "index: no field 'zzz'; pass the name of a per-sequence field"),
        ("x", "field 'x' must have one value for each sequence, but has many"),
        ("v", "field 'v' must have one value for each sequence, but has many"),
    ],
)
def test_what_is_not_one_value_for_each_sequence_is_refused(name, message):
    store = MemoryStore.from_sequences(
        [{"x": np.zeros(3), "y": 1, "v": np.zeros((2,))}], axes={"v": None}
    )
    with pytest.raises(ConfigError, match=message):
        read_values(store, name)
