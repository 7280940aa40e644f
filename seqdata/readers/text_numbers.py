"""Numbers in files of text (CSV, JSON): lists in cells, and numbers that a parser would change."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError, SeqDataWarning
from seqdata.storage.arrow_columns import combine_column, convert_column, is_list

if TYPE_CHECKING:
    import pyarrow as pa


_ALL_WHOLE = 1 << 53  # float64 holds every integer up to it
_MOST_DIGITS = 300  # more than float64 holds
_LIST = r"^\s*\[[\d\s.,eE+-]+\]\s*$"
_LONG_NUMBER = r"^\s*[+-]?\d{16,}\s*$"  # 2**53, up to which float64 has all, has 16 digits
_NUMBER = r"^\s*[+-]?\.?\d"
_OTHER_NUMBER = r"^\s*[+-]?\d+([,_ ']\d+)+(\.\d+)?\s*$|^\s*[+-]?\d{1,3}(\.\d{3})*,\d+\s*$"
_WHOLE_NUMBER = re.compile(r"[+-]?\d+")


def parse_list_cells(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return a table of a CSV file with lists in place of strings that all read ``[1, 2.5]``.

    Args:
        table: The table.
        names: Columns that stay strings.

    Raises:
        DecodeError: If a cell is not a list of numbers, or one of its numbers has no exact value.
    """
    from pyarrow import compute, types

    text_columns = set(names)
    for number, column in enumerate(table.schema):
        if column.name in text_columns or not types.is_string(column.type) or not table.num_rows:
            continue
        if not compute.all(compute.starts_with(table.column(number), "[")).as_py():
            continue
        texts = convert_column(column.name, combine_column(table, number))
        if isinstance(texts, list):
            table = table.set_column(number, column.name, _parse_cells(column.name, texts))
    return table


def _parse_cells(name: str, texts: list[str]) -> pa.Array:
    import pyarrow as pa

    cells = [_parse_cell(name, row, text) for row, text in enumerate(texts)]
    nonempty = [cell for cell in cells if len(cell)]
    offsets = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])]).astype(np.int64)
    values = np.concatenate(nonempty) if nonempty else np.empty(0)
    if _are_large(values):
        for row, text in enumerate(texts):
            refuse_inexact(name, row, json.loads(text, parse_int=str, parse_float=str))
    return pa.LargeListArray.from_arrays(offsets, values)


def _parse_cell(name: str, row: int, text: str) -> NDArray[Any]:
    try:
        parsed = json.loads(text)
        cell = np.asarray(parsed)
    except ValueError:
        parsed, cell = text, np.asarray(text)
    is_mixed = cell.ndim == 1 and bool in set(map(type, parsed))  # NumPy makes 1 of true
    if cell.ndim != 1 or is_mixed or (cell.size and cell.dtype.kind not in "iuf"):
        raise DecodeError.at(
            f"table: row {row}, column {name!r} is {text[:40]!r}, but must be a list of numbers "
            "like '[1, 2.5]'. Check the cell.",
            field=name,
            row=row,
        )
    return cell


def find_large_floats(table: pa.Table) -> list[str]:
    """Return the columns of floats, or of lists of them, that may be integers cut short.

    A parser of text makes float64 of integers beyond int64, and of those next to fractions:
    float64 holds all of them up to 2**53 only.
    """
    return [
        column.name
        for number, column in enumerate(table.schema)
        if _are_large(_flatten_floats(combine_column(table, number)))
    ]


def find_doubtful_columns(table: pa.Table) -> list[str]:
    """Return the columns of a CSV file that ``refuse_doubtful`` must check."""
    from pyarrow import types

    booleans = [column.name for column in table.schema if types.is_boolean(column.type)]
    return [*find_large_floats(table), *booleans]


def refuse_doubtful(name: str, column: Any, texts: Any) -> None:
    """Raise if a parser of CSV made other numbers than a file has.

    Args:
        name: The name of the column.
        column: The values of the parser, floats or booleans.
        texts: The strings of the file.

    Raises:
        DecodeError: If an integer was rounded, a number became infinite, or 1 became true.
    """
    import pyarrow.compute as pc
    from pyarrow import types

    if types.is_boolean(column.type):
        for row in pc.indices_nonzero(pc.match_substring_regex(texts, _NUMBER)).to_pylist()[:1]:
            raise DecodeError.at(
                f"table: row {row}, column {name!r} must be true or false as in other rows, but "
                f"is {texts[row].as_py()}. Write booleans or numbers throughout",
                field=name, row=row,
            )  # fmt: skip
        return
    is_infinite = pc.and_(pc.is_inf(column), pc.match_substring_regex(texts, _NUMBER))
    is_doubtful = pc.or_(is_infinite, pc.match_substring_regex(texts, _LONG_NUMBER))
    for row in pc.indices_nonzero(is_doubtful).to_pylist():
        refuse_inexact(name, row, texts[row].as_py().strip())


def warn_of_number_texts(table: pa.Table, names: Iterable[str]) -> None:
    """Warn of columns of strings that are numbers in another notation: ``1,5`` or ``1_000``.

    Args:
        table: The table of a CSV file.
        names: Columns that are strings on purpose.
    """
    from pyarrow import compute, types

    for column in table.schema:
        if column.name in names or not types.is_string(column.type) or not table.num_rows:
            continue
        texts = table.column(column.name)
        are_lists = compute.match_substring_regex(texts, _LIST)
        if compute.any(are_lists).as_py():
            warnings.warn(
                f"table: column {column.name!r} holds lists of numbers in some rows only, and is "
                f"read as strings. Write '[]' where a list is empty",
                SeqDataWarning,
                stacklevel=2,
            )
        elif compute.all(compute.match_substring_regex(texts, _OTHER_NUMBER)).as_py():
            warnings.warn(
                f"table: column {column.name!r} holds strings such as {texts[0].as_py()!r}, which "
                "are not read as numbers. Pass `decimal`=',' where that is the decimal point, and "
                "write numbers without separators of thousands",
                SeqDataWarning,
                stacklevel=2,
            )


def _flatten_floats(column: Any) -> NDArray[Any]:
    while is_list(column.type):
        column = column.flatten()
    has_floats = str(column.type) == "double"
    return np.asarray(column.to_numpy(zero_copy_only=False)) if has_floats else np.empty(0)


def _are_large(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f" and bool((np.abs(values) >= _ALL_WHOLE).any())


def refuse_inexact(name: str, row: int, text: str | float | list[Any]) -> None:
    """Raise if an integer, as a file has it, is another one as float64, or a number infinite.

    Args:
        name: The column of the number.
        row: The row of the number.
        text: The number's digits, or a list of such; anything but strings is passed over.

    Raises:
        DecodeError: If it is.
    """
    if isinstance(text, list):
        for part in text:
            refuse_inexact(name, row, part)
    elif isinstance(text, str) and not _is_exact(text):
        raise DecodeError.at(
            f"table: row {row}, column {name!r} must have numbers that int64 or float64 hold "
            f"exactly, but has {text:.40}. Write such numbers as text, or in parts",
            field=name,
            row=row,
        )


def _is_exact(text: str) -> bool:
    if _WHOLE_NUMBER.fullmatch(text) is None:
        return math.isfinite(float(text))
    return len(text) <= _MOST_DIGITS and int(float(text)) == int(text)
