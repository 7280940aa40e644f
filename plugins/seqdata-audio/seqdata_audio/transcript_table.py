"""Tables of transcripts: files of several forms, manifests of other toolkits, tables in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata_audio.manifests import JSON_LINES, read_kaldi_folder, read_lhotse

FILE_COLUMNS = ("file", "path", "audio_filepath")
"""Columns that may name the recording of a row; the first that exists is used."""
TEXT_COLUMNS = ("text", "sentence", "transcript")
"""Columns that may hold the text of a row; the first that exists is used."""
_FORMS = "a .csv, .tsv, .parquet, .jsonl or .json file (an object per line), or a Kaldi data folder"
Columns = Mapping[str, NDArray[Any] | list[str]]


def read_table(table: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a table for messages, and column -> list of n strings, or numbers (n,).

    A column of a CSV or TSV file is converted to numbers if this loses nothing (``007`` stays a
    string).

    Raises:
        ConfigError: If it cannot be read, or a column has another type.
    """
    import pyarrow as pa

    if isinstance(table, str | os.PathLike):
        where = f"transcript {os.fspath(table)!r}"
        try:
            rows = _read_manifest(os.fspath(table))
            if rows is not None:
                return where, {name: _to_column(values) for name, values in rows.items()}
            arrow, is_text = _read_file(os.fspath(table))
        except (OSError, pa.ArrowInvalid) as error:
            raise ConfigError(f"{where}: cannot be read ({error}). Check the file") from error
    else:
        where, is_text = f"transcript ({type(table).__name__})", False
        arrow = _convert(table)
    columns: dict[str, Any] = {}
    for name in arrow.column_names:
        is_name = name in (*FILE_COLUMNS, *TEXT_COLUMNS)
        columns[name] = _convert_column(where, name, arrow[name], is_text and not is_name)
    return where, columns


def _read_manifest(path: str) -> dict[str, list[Any]] | None:
    """Return the table of a manifest of another toolkit; None if the file is not a manifest."""
    if os.path.isdir(path):
        return read_kaldi_folder(path)
    return read_lhotse(path) if path.lower().endswith(JSON_LINES) else None


def _to_column(values: list[Any]) -> Any:
    """Return numbers as float64, with NaN for None; return strings unchanged."""
    if all(isinstance(value, str) for value in values):
        return values
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _read_file(path: str) -> tuple[Any, bool]:
    """Return a file as an Arrow table, and whether all its columns are unparsed strings."""
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    ending = PurePosixPath(path.lower()).suffix
    if ending in (".csv", ".tsv"):
        with open(path, "rb") as file:
            head = pyarrow.csv.open_csv(file, parse_options=_parse(ending)).schema.names
        types = dict.fromkeys(head, pyarrow.string())
        convert = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False)
        read = pyarrow.csv.read_csv
        return read(path, parse_options=_parse(ending), convert_options=convert), True
    if ending == ".parquet":
        return pyarrow.parquet.read_table(path), False
    if path.lower().endswith(JSON_LINES):
        with pyarrow.input_stream(path, compression="detect") as file:
            return pyarrow.json.read_json(file), False
    raise ConfigError(f"transcript {path!r}: must be {_FORMS}. Convert it")


def _parse(ending: str) -> Any:
    import pyarrow.csv

    if ending == ".tsv":  # as Common Voice writes them: quotes are part of a sentence
        return pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False)
    return pyarrow.csv.ParseOptions(newlines_in_values=True)


def _convert(table: Any) -> Any:
    import pyarrow as pa

    if isinstance(table, pa.Table):
        return table
    if hasattr(table, "iloc"):  # pandas
        return pa.Table.from_pandas(table, preserve_index=False)
    if hasattr(table, "to_arrow"):  # Polars
        return table.to_arrow()
    raise ConfigError(
        f"`transcript` must be a path ({_FORMS}) or a pandas, Polars or Arrow table, but is a "
        f"{type(table).__name__}. Pass one of these"
    )


def _convert_column(where: str, name: str, column: Any, is_text: bool) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if is_text:
        return _parse_numbers(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return pc.fill_null(column.cast(pa.large_string()), "").to_pylist()
    if pa.types.is_null(kind):
        return [""] * len(column)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ConfigError(
            f"{where}: columns must be strings or numbers, but {name!r} is {kind}. Leave it out"
        )
    if column.null_count:
        column = pc.fill_null(column.cast(pa.float64()), float("nan"))
    return column.to_numpy()


def _parse_numbers(column: Any) -> Any:
    """Convert a column of strings to numbers if each value is a number, else to a list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    forms = ((r"^(0|-?[1-9]\d{0,17})$", pa.int64()), (r"^-?(0|[1-9]\d*)\.\d+$", pa.float64()))
    for pattern, kind in forms:
        if len(column) and pc.all(pc.match_substring_regex(column, pattern)).as_py():
            return column.cast(kind).to_numpy()
    return column.to_pylist()
