"""Padding: what goes where, by every kind of field, row and axis."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.collators.base import SupportsAllocator
from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError
from seqdata.storage.memory import MemoryStore

SEQUENCES = [
    {
        "x": np.arange(10 * n, 10 * n + n, dtype=np.uint16),
        "f": np.full((n, 2), n, dtype=np.float32),
        "text": np.arange(5 - n, dtype=np.uint8),
        "y": n,
        "v": np.array([n, -n], dtype=np.float64),
        "id": f"s{n}",
    }
    for n in range(1, 5)
]
STORE = MemoryStore.from_sequences(SEQUENCES, axes={"text": "text", "v": None})
LAYOUT = Axes("time", {name: field.axis for name, field in STORE.fields.items()})


def head(spans, rows=None, axes=LAYOUT):
    """Describe rows as the loader does, by plain Python."""
    spans = np.asarray(spans, dtype=np.int64).reshape(-1, 3)
    lengths = spans[:, 2] - spans[:, 1]
    edges = np.arange(len(spans) + 1) if rows is None else np.asarray(rows)
    per_row = torch.tensor([int(lengths[a:b].sum()) for a, b in pairwise(edges)])
    segments = None
    if rows is not None:
        places = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        segments = torch.from_numpy(np.column_stack([places, spans]))
    return SequenceBatch(
        data={},
        lengths=per_row,
        ids=torch.zeros_like(per_row),
        weight=torch.ones(len(per_row)),
        start=torch.zeros_like(per_row),
        num_tokens=int(per_row.sum()),
        lengths_of={"time": per_row},
        padded_length=max(1, int(per_row.max())),
        segments=segments,
        axes=axes,
    )


def collate(spans, rows=None, fields=tuple(STORE.fields), padding=0, axes=LAYOUT, further=0):
    spans = np.asarray(spans, dtype=np.int64).reshape(-1, 3)
    columns = STORE.read(spans + np.array([0, 0, further]), fields)
    return Padded(padding)(columns, head(spans, rows, axes)).validate()


def test_rows_are_padded_to_the_longest_and_keep_their_dtype():
    batch = collate([[3, 0, 4], [0, 0, 1], [1, 0, 2]])
    assert batch["x"].tolist() == [[40, 41, 42, 43], [10, 0, 0, 0], [20, 21, 0, 0]]
    assert batch["x"].dtype == torch.uint16
    assert batch["f"].shape == (3, 4, 2)
    assert batch["f"][1].tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]


def test_values_of_a_sequence_are_one_per_row():
    batch = collate([[3, 0, 4], [0, 0, 1]])
    assert batch["y"].tolist() == [4, 1]
    assert batch["v"].tolist() == [[4.0, -4.0], [1.0, -1.0]]
    assert batch["id"] == ["s4", "s1"]


def test_a_span_takes_its_timesteps_only():
    assert collate([[3, 1, 3]], fields=["x"])["x"].tolist() == [[41, 42]]


def test_another_axis_comes_whole_with_lengths_of_its_own():
    batch = collate([[3, 1, 3], [0, 0, 1]])
    assert batch["text"].tolist() == [[0, 0, 0, 0], [0, 1, 2, 3]]
    assert batch.lengths_of["text"].tolist() == [1, 4]
    assert batch.lengths_of["time"].tolist() == [2, 1]


def test_an_axis_that_is_empty_in_the_whole_batch_is_one_timestep_wide():
    store = MemoryStore.from_sequences(
        [{"x": [1, 2], "text": np.zeros(0, np.uint8)}], axes={"text": "text"}
    )
    axes = Axes("time", {"x": "time", "text": "text"})
    batch = Padded(7)(
        store.read(np.array([[0, 0, 2]]), ["x", "text"]), head([[0, 0, 2]], axes=axes)
    )
    assert batch["text"].tolist() == [[7]]
    assert batch.lengths_of["text"].tolist() == [0]


def test_several_spans_lie_one_behind_another_in_their_row():
    batch = collate([[0, 0, 1], [3, 0, 4], [1, 0, 2]], rows=[0, 2, 3], padding={"x": 9})
    assert batch["x"].tolist() == [[10, 40, 41, 42, 43], [20, 21, 9, 9, 9]]
    assert batch["y"].tolist() == [1, 2]
    assert batch["v"].tolist() == [[1.0, -1.0], [2.0, -2.0]]
    assert batch["id"] == ["s1", "s2"]
    assert batch.lengths_of["text"].tolist() == [4 + 1, 3]
    assert batch["text"].tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 0, 0]]


def test_rows_without_a_span_are_padding_wherever_they_are():
    fields = ["x"]
    batch = collate([[1, 0, 2], [0, 0, 1]], rows=[0, 0, 1, 1, 2, 2], fields=fields, padding=9)
    assert batch["x"].tolist() == [[9, 9], [20, 21], [9, 9], [10, 9], [9, 9]]


def test_idle_rows_are_one_timestep_of_padding():
    assert collate([[1, 1, 1], [0, 0, 0]], fields=["x"], padding=3)["x"].tolist() == [[3], [3]]


def test_a_shifted_field_gives_two_views_of_one_tensor():
    axes = Axes("time", {"x": "time"}, {"x": 1})
    batch = collate([[3, 0, 3], [1, 0, 1]], fields=["x"], axes=axes, further=1)
    assert batch["x"].tolist() == [[40, 41, 42], [20, 21, 0]]
    assert batch["targets"].tolist() == [[41, 42, 43], [21, 0, 0]]
    assert batch["x"].untyped_storage().data_ptr() == batch["targets"].untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8", "bool"])
def test_padding_is_one_element_of_the_dtype(dtype):
    store = MemoryStore.from_sequences([np.ones(1, dtype), np.ones(3, dtype)])
    columns = store.read(np.array([[0, 0, 1], [1, 0, 3]]), ["x"])
    batch = Padded(1)(columns, head([[0, 0, 1], [1, 0, 3]], axes=Axes()))
    assert batch["x"].tolist() == np.ones((2, 3), dtype).tolist()


def test_padding_may_be_nan_or_negative():
    batch = collate([[3, 0, 4], [0, 0, 1]], fields=["f"], padding=float("nan"))
    assert batch["f"][1, 1:].isnan().all()
    assert collate([[3, 0, 4], [0, 0, 1]], fields=["f"], padding=-1)["f"][1, 3].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("padding", "field", "dtype"),
    [
        (-1, "x", "uint16"),
        (70_000, "x", "uint16"),
        (0.5, "x", "uint16"),
        (float("nan"), "x", "uint16"),
        ("a", "f", "float32"),
        (1e39, "f", "float32"),
    ],
)
def test_padding_that_does_not_fit_a_dtype_is_refused(padding, field, dtype):
    match = f"collator 'padded': `padding` of field '{field}' must be a value of {dtype}, but is"
    with pytest.raises(ConfigError, match=match):
        collate([[3, 0, 4], [0, 0, 1]], fields=[field], padding=padding)


def test_padding_of_a_field_that_is_not_there_is_refused():
    match = "collator 'padded': `padding`: no field 'xx'; did you mean 'x'"
    with pytest.raises(ConfigError, match=match):
        collate([[3, 0, 4]], padding={"xx": 1})


def test_padding_can_differ_by_field():
    batch = collate([[3, 0, 4], [0, 0, 1]], padding={"x": 9, "f": -1.0})
    assert batch["x"][1].tolist() == [10, 9, 9, 9]
    assert batch["f"][1, 1].tolist() == [-1.0, -1.0]
    assert batch["text"][0].tolist() == [0, 0, 0, 0]


def test_outputs_come_from_the_allocator():
    asked = []

    def allocate(shape, dtype):
        asked.append((shape, np.dtype(dtype)))
        return np.empty(shape, dtype)

    collator = Padded(3)
    assert isinstance(collator, SupportsAllocator)
    other = collator.with_allocator(allocate)
    columns = STORE.read(np.array([[3, 0, 4], [0, 0, 1]]), ["x", "f"])
    other(columns, head([[3, 0, 4], [0, 0, 1]]))
    assert asked == [((8,), np.dtype("u2")), ((8, 2), np.dtype("f4"))]
    assert other == collator


def test_it_reads_as_it_is_written():
    assert repr(Padded({"x": 1})) == "Padded(padding={'x': 1})"
