"""Merge of predictions into a store or a table: each sequence once, in the order of the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, IncompleteEpochError, PlanError
from seqdata.lightning.predictions.outputs import PredictionField
from seqdata.lightning.predictions.spill import MergedRows
from seqdata.protocols import Field, Store
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.concat import ConcatStore
from seqdata.storage.span_store import locate_in_base
from seqdata.storage.views import View
from seqdata.storage.writing.table_files import find_table_kind, write_table_file

_KEYS_AT_ONCE = 1 << 12  # sequences whose ids are looked up together


@dataclass(frozen=True, slots=True, eq=False)
class PredictionTarget:
    """Destination of one dataset's predictions, and the rows that must be predicted.

    Attributes:
        store: The predicted store.
        root: Folder of the store that is written, or file of a table.
        axis: Axis that was planned on.
        rows: Number of planned rows.
        is_per_span: Whether a row is written for each span.
        is_partial: Whether rows may be missing.
        is_last_kept: Whether the last timesteps of a truncated sequence are planned.
        overwrite: Whether existing files in ``root`` are replaced.
    """

    store: Store
    root: Path
    axis: str
    rows: int
    is_per_span: bool
    is_partial: bool
    overwrite: bool
    is_last_kept: bool = False


def write_predictions(rows: MergedRows, target: PredictionTarget) -> None:
    """Write the rows of all ranks as one store, or as one table if ``root`` has such a suffix.

    Raises:
        IncompleteEpochError: If rows are missing.
        PlanError: If a sequence was predicted twice, has a gap, or was dropped by the policy.
        ConfigError: If the folder is not empty, or a prediction does not fit into CSV.
    """
    offsets = _find_sequence_offsets(rows, target)
    _check_complete(rows, offsets, target)
    if find_table_kind(target.root) is not None:
        _write_table(rows, offsets, target)
        return
    axes: dict[str, str | None] = dict.fromkeys(rows.fields)
    axes.update(
        {name: target.axis for name, field in rows.fields.items() if field.per == "timestep"}
    )
    numbers = rows.spans[offsets[:-1], 0]
    write_arrow(
        target.root,
        _iterate_sequences(rows, offsets, target),
        axes={**_select_axes(axes, rows), "spans": "spans"},
        key="id" if _has_unique_ids(target.store, numbers) else "",
        progress=False,
        overwrite=target.overwrite,
    )


def _write_table(rows: MergedRows, offsets: NDArray[np.int64], target: PredictionTarget) -> None:
    sequences = _iterate_sequences(rows, offsets, target)
    fields = {
        "id": Field("str", (), None),
        "position": Field("int64", (), None),
        **{
            name: Field(field.dtype, field.shape, "time" if field.per == "timestep" else None)
            for name, field in rows.fields.items()
        },
        "spans": Field("int64", (2,), "spans"),
    }
    if find_table_kind(target.root) == "csv":
        check_csv_fields(target.root, rows.fields)
        del fields["spans"]
        fields |= dict.fromkeys(("start", "stop"), Field("int64", (), None))
        sequences = (
            {**sequence, "start": sequence["spans"][0, 0], "stop": sequence["spans"][-1, 1]}
            for sequence in sequences
        )
    write_table_file(target.root, sequences, fields)


def check_csv_fields(path: Path, fields: Mapping[str, PredictionField]) -> None:
    """Raise if predictions are not one number per row: cells of CSV cannot hold lists.

    Raises:
        ConfigError: If a field has more; the message names the first.
    """
    for name, field in fields.items():
        if field.per == "timestep" or field.shape:
            raise ConfigError.at(
                f"PredictionWriter: {path}: prediction {name!r} must be one number per row to be "
                f"written as CSV, but is {field}. Choose a path that ends in .parquet, .arrow or "
                ".jsonl, whose cells may be lists, or name other fields",
                file=str(path),
            )


def _select_axes(axes: dict[str, str | None], rows: MergedRows) -> dict[str, str | None]:
    return {
        name: axis for name, axis in axes.items() if axis is not None or rows.fields[name].shape
    }


def _find_sequence_offsets(rows: MergedRows, target: PredictionTarget) -> NDArray[np.int64]:
    """Return the offsets of sequences in the rows, int64 (sequences + 1,)."""
    count = len(rows.spans)
    if target.is_per_span:
        return np.arange(count + 1)
    first_rows = np.flatnonzero(np.diff(rows.spans[:, 0], prepend=-1))
    return np.append(first_rows, count)


def _iterate_sequences(
    rows: MergedRows, offsets: NDArray[np.int64], target: PredictionTarget
) -> Iterator[dict[str, Any]]:
    for first in range(0, len(offsets) - 1, _KEYS_AT_ONCE):
        run_offsets = offsets[first : first + _KEYS_AT_ONCE + 1]
        numbers = rows.spans[run_offsets[:-1], 0]
        keys = get_base_keys(target.store, target.store.base_numbers(numbers))
        _, positions, starts = locate_in_base(target.store, numbers, target.axis)
        for key, position, begin, (start, stop) in zip(
            keys, positions, starts, itertools.pairwise(run_offsets.tolist()), strict=True
        ):
            sequence: dict[str, Any] = {"id": key, "position": position}
            sequence.update({name: rows.get_value(name, start, stop) for name in rows.fields})
            sequence["spans"] = rows.spans[start:stop, 1:] + begin
            yield sequence


def _check_complete(
    merged: MergedRows, offsets: NDArray[np.int64], target: PredictionTarget
) -> None:
    num_rows = len(merged.spans)
    if num_rows < target.rows and not target.is_partial:
        raise IncompleteEpochError(
            f"PredictionWriter: all {target.rows} planned rows must be predicted, but {num_rows} "
            "were; rows that `on_error='mask'` masks are not. Repair the data that could not be "
            "read, or pass `partial=True`."
        )
    numbers, starts, stops = merged.spans.T
    is_same_sequence = numbers[1:] == numbers[:-1]
    is_repeated = is_same_sequence & (
        starts[1:] <= starts[:-1] if target.is_per_span else starts[1:] < stops[:-1]
    )
    if target.is_per_span:
        is_repeated &= stops[1:] == stops[:-1]
    if is_repeated.any():
        i = int(np.flatnonzero(is_repeated)[0])
        raise PlanError.at(
            f"PredictionWriter: {_describe_sequence(target.store, numbers[i])} was predicted "
            f"twice from timestep {starts[i + 1]} on. Use a loader that divides the data among "
            "ranks, and for windows pass `per='span'`",
            sequence=int(numbers[i]),
        )
    if target.is_per_span:
        return
    expected_starts = np.concatenate([[0], stops[:-1]])
    expected_starts[offsets[:-1]] = starts[offsets[:-1]] if target.is_last_kept else 0
    if (starts != expected_starts).any():
        i = int(np.flatnonzero(starts != expected_starts)[0])
        raise PlanError.at(
            f"PredictionWriter: {_describe_sequence(target.store, numbers[i])} has no prediction "
            f"of timesteps {expected_starts[i]}..{starts[i]}. Pass `per='span'` for a row of "
            "each span",
            sequence=int(numbers[i]),
        )
    if len(offsets) - 1 < len(target.store) and not target.is_partial:
        is_present = np.zeros(len(target.store), dtype=np.bool_)
        is_present[numbers] = True
        raise make_left_out_error(target.store, np.flatnonzero(~is_present))


def make_left_out_error(store: Store, indices: NDArray[np.int64]) -> PlanError:
    """Return the error about sequences that the policy drops."""
    return PlanError.at(
        f"PredictionWriter: the policy drops {len(indices)} of {len(store)} sequences, the "
        f"first is {_describe_sequence(store, indices[0])}. Check `empty` and `too_long`, or "
        "pass `partial=True`",
        sequence=int(indices[0]),
    )


def _describe_sequence(store: Store, index: Any) -> str:
    indices = np.array([index], dtype=np.int64)
    return f"sequence {int(index)} ({get_base_keys(store, store.base_numbers(indices))[0]!r})"


def _has_unique_ids(store: Store, indices: NDArray[np.int64]) -> bool:
    """Return whether each sequence occurs once, so that its id can be the key."""
    numbers = store.base_numbers(indices)
    base = store.base if isinstance(store, View) else store
    if isinstance(base, ConcatStore) and not base.has_unique_ids(numbers):
        return False
    is_present = np.zeros(int(numbers.max()) + 1, dtype=np.bool_)
    is_present[numbers] = True
    return int(is_present.sum()) == len(numbers)
