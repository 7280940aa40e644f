"""Columns of an Arrow table as NumPy arrays: numbers, strings or lists of numbers."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError, SeqDataWarning

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class ListColumn:
    """A column whose cells are lists.

    Attributes:
        values: All timesteps, (n,) or (n, width).
        offsets: int64 (rows+1,), row -> timesteps.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def convert_column(table: pa.Table, name: str) -> NDArray[Any] | list[str] | ListColumn | None:
    """Return column as numbers, strings or lists; None, with a warning, where it is none of these.

    Raises:
        DecodeError: If values are missing, or a list holds something other than numbers.
    """
    from pyarrow import types

    column = combine_column(table, name)
    refuse_missing(name, column)
    if _is_number(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if types.is_string(column.type) or types.is_large_string(column.type):
        texts = _get_texts(name, column)
        return (
            _parse_cells(name, texts) if texts and all(t.startswith("[") for t in texts) else texts
        )
    if _is_list(column.type):
        return _convert_lists(name, column)
    warn_left_out(name, f"of type {column.type}")
    return None


def combine_column(table: pa.Table, name: str) -> pa.Array:
    """Return a column in one piece, its values in place of codes of a dictionary."""
    import pyarrow as pa
    from pyarrow import types

    chunks = table.column(name).chunks or [pa.array([], type=table.schema.field(name).type)]
    if types.is_dictionary(chunks[0].type):
        chunks = [chunk.dictionary_decode() for chunk in chunks]
    return pa.concat_arrays(chunks)


def _get_texts(name: str, column: Any) -> list[str]:
    try:
        return [str(text) for text in column.to_pylist()]
    except UnicodeDecodeError as error:
        raise DecodeError.at(
            f"table: column {name!r} must hold texts in UTF-8, but does not ({error}). Convert the "
            "file",
            field=name,
        ) from error


def refuse_missing(name: str, column: Any) -> None:
    """Raise if values of a column are missing.

    Raises:
        DecodeError: If it has a null.
    """
    if column.null_count:
        raise DecodeError.at(
            f"table: column {name!r} has {column.null_count} missing values. Fill "
            "or drop them first",
            field=name,
        )


def warn_left_out(name: str, reason: str) -> None:
    """Warn that a column is left out."""
    warnings.warn(
        f"table: column {name!r} is left out: {reason}; must be numbers, strings or lists of "
        "numbers",
        SeqDataWarning,
        stacklevel=2,
    )


def _is_number(column_type: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_integer(column_type)
        or types.is_floating(column_type)
        or types.is_boolean(column_type)
    )


def _is_list(column_type: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_list(column_type)
        or types.is_large_list(column_type)
        or types.is_fixed_size_list(column_type)
    )


def _convert_lists(name: str, column: Any) -> ListColumn | None:
    """Return a list column, in which lists of equally long lists are vectors per timestep."""
    import pyarrow.compute as pc

    inner = column.flatten()
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    shape: tuple[int, ...] = ()
    refuse_missing(name, inner)
    if _is_list(inner.type):
        widths = sorted(set(pc.list_value_length(inner).to_pylist()))
        if len(widths) > 1:
            raise DecodeError.at(
                f"table: column {name!r} holds vectors of {widths[0]} to {widths[-1]} numbers, "
                "but must hold equally many per timestep. Split it into several columns.",
                field=name,
            )
        shape, inner = (widths[0] if widths else 0,), inner.flatten()
        refuse_missing(name, inner)
    if not _is_number(inner.type):
        warn_left_out(name, f"of type {column.type}")
        return None
    values = np.asarray(inner.to_numpy(zero_copy_only=False))
    return ListColumn(values.reshape(int(offsets[-1]), *shape), offsets)


def _parse_cells(name: str, texts: list[str]) -> ListColumn:
    """Return the values of cells like ``[1, 2.5]`` of a CSV file."""
    cells = [_parse_cell(name, row, text) for row, text in enumerate(texts)]
    nonempty = [cell for cell in cells if len(cell)]
    offsets = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])]).astype(np.int64)
    return ListColumn(np.concatenate(nonempty) if nonempty else np.empty(0), offsets)


def _parse_cell(name: str, row: int, text: str) -> NDArray[Any]:
    try:
        cell = np.asarray(json.loads(text))
    except ValueError:
        cell = np.asarray(text)
    if cell.ndim != 1 or (cell.size and cell.dtype.kind not in "iuf"):
        raise DecodeError.at(
            f"table: row {row}, column {name!r} is {text[:40]!r}, but must be a list of numbers "
            "like '[1, 2.5]'. Check the cell.",
            field=name,
            row=row,
        )
    return cell
