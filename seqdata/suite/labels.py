"""Checks of labels: every sequence must have one that is finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError
from seqdata.suite.table_columns import is_float, read_columns


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
