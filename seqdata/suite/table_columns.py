"""Columns of a table: all values at once, and one value per sequence, such as a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError
from seqdata.logical_types import Categories
from seqdata.storage.row_chunks import flatten_column
from seqdata.storage.views import SequenceStore


def read_columns(
    store: SequenceStore, names: Sequence[str], lengths: NDArray[np.int64], axis: str
) -> dict[str, Any]:
    """Return the values of all sequences, one after the other, by field.

    Args:
        store: The table.
        names: Fields; one that is named twice is read once.
        lengths: Timesteps to read of each sequence, int64 (sequences,); 0 reads only the fields
            with one value per sequence.
        axis: Axis of the timesteps.
    """
    spans = np.zeros((len(store), 3), dtype=np.int64)
    spans[:, 0], spans[:, 2] = np.arange(len(store)), lengths
    columns = store.read(spans, list(dict.fromkeys(names)), axis=axis)
    return {name: flatten_column(column) for name, column in columns.items()}


def list_groups(store: SequenceStore) -> list[str]:
    """Return the names of fields with one string or integer per sequence, such as the group."""
    return [
        name
        for name, field in store.fields.items()
        if field.axis is None and not field.shape and name != "id"
    ]


def take_static(
    store: SequenceStore, name: str, values: Any, lengths: NDArray[np.int64], who: str, remedy: str
) -> Any:
    """Return one value of a field per sequence.

    Args:
        store: The table.
        name: Field with one value per sequence, or with the same value in all timesteps of one.
        values: Its values, one sequence after the other.
        lengths: Number of timesteps of each sequence, int64 (sequences,).
        who: Beginning of the message if the value changes within a sequence.
        remedy: End of this message.

    Raises:
        DataError: If the value changes within a sequence.
    """
    field = store.fields[name]
    if field.axis is None:
        return values
    stops = np.cumsum(lengths)
    first = values[np.minimum(stops - lengths, len(values) - 1)]
    repeated = np.repeat(first, lengths)
    differs = values != repeated
    if values.dtype.kind == "f":
        differs &= ~(np.isnan(values) & np.isnan(repeated))
    if differs.any():
        number = int(np.searchsorted(stops, int(np.flatnonzero(differs)[0]), side="right"))
        raise DataError(
            f"{who}: static column {name!r} must have one value per sequence, but that of "
            f"{list(store.ids)[number]!r} changes. {remedy}"
        )
    if isinstance(field.logical, Categories):
        return [field.logical.values[code] for code in first]
    return first


def is_float(values: Any) -> bool:
    """Return whether values are an array of floats, which may hold NaN or an infinity."""
    return isinstance(values, np.ndarray) and values.dtype.kind == "f"


def check_static_numbers(
    who: str, statics: Mapping[str, Any], ids: list[str], kept: NDArray[np.int64]
) -> None:
    """Raise if a number of a sequence is infinite.

    Args:
        who: Beginning of the message.
        statics: Field -> a value per sequence.
        ids: Ids of the sequences.
        kept: The sequences that are used, int64 (n,).

    Raises:
        DataError: If a number is infinite; names the field and the sequence.
    """
    for name, values in statics.items():
        bad = kept[np.isinf(values[kept])] if is_float(values) else kept[:0]
        if len(bad):
            raise make_infinite_error(who, name, values[bad[0]], ids[int(bad[0])])


def make_infinite_error(who: str, name: str, value: Any, owner: str, where: str = "") -> DataError:
    """Return the error of an infinite number.

    Args:
        who: Beginning of the message.
        name: Field of the number.
        value: The number.
        owner: Id of the sequence.
        where: Place of the number in the sequence, such as ``" at 2024-01-31"``.
    """
    return DataError(
        f"{who}: values of {name!r} must be finite, but {owner!r} has {value}{where}. Repair it, "
        "or make it a missing value (NaN)"
    )


def check_labels(
    who: str, name: str, values: Any, ids: list[str], chosen: NDArray[np.int64]
) -> None:
    """Raise if a sequence has no label, or an infinite one.

    Args:
        who: Beginning of the message.
        name: Field of the labels.
        values: A label per sequence. Only floats are checked; tables refuse other missing values.
        ids: Ids of the sequences.
        chosen: The sequences that are used, int64 (n,).

    Raises:
        DataError: If a label is NaN or infinite; names the first such sequence.
    """
    if not is_float(values):
        return
    bad = chosen[~np.isfinite(values[chosen])]
    if not len(bad):
        return
    first, is_missing = int(bad[0]), bool(np.isnan(values[bad[0]]))
    found = "has none" if is_missing else f"has {values[first]}"
    raise DataError(
        f"{who}: label {name!r} must have a value for each sequence, but {ids[first]!r} {found}. "
        "Leave out such sequences, or fill the label; then convert floats that stand for classes "
        "to integers"
    )


def check_stored_labels(who: str, name: str, store: Any) -> None:
    """Raise if a sequence of a store has no label, or an infinite one.

    A field of labels along an axis is not read: it may be large.

    Args:
        who: Beginning of the message.
        name: Field of the labels.
        store: The store.

    Raises:
        DataError: If a label is NaN or infinite; names the first such sequence.
    """
    field = store.fields[name]
    if field.axis is None and not field.shape:
        lengths, axis = np.zeros(len(store), np.int64), next(iter(store.lengths_of))
        values = read_columns(store, (name,), lengths, axis)[name]
        check_labels(who, name, values, list(store.ids), np.arange(len(store)))


def describe_float_labels(name: str) -> str:
    """Return the note on labels that are floats."""
    return (
        f"label {name!r} holds floats: numbers to predict, as they are. Convert them to integers "
        "for classes"
    )
