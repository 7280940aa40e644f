"""Formats ``csv`` and ``jsonl``: tables as text, in which numbers have no types.

A parser of text guesses types, and changes numbers that have none: integers that are too large,
names that look like numbers. Such cells are compared with the text, and refused by their line.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError, warn
from seqdata.readers.groups import refuse_missing
from seqdata.readers.source import ReadOptions, SourceFile
from seqdata.readers.tables import add_partition, concatenate, iter_concatenated, refuse_csv_options
from seqdata.storage.arrow_columns import combine_column, convert_column, is_list
from seqdata.storage.compressed_files import open_decompressed
from seqdata.storage.inputs import check_unique_names

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 26  # of a CSV or JSON file that are parsed at once; a row must fit into it
_HEAD_BYTES = 1 << 12  # bytes of a text file by which its encoding is detected
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_DELIMITER = ","
_DELIMITERS = (_DELIMITER, ";", "\t", "|")
_NOT_JSON = object()
_ALL_WHOLE = 1 << 53  # float64 holds every integer up to it
_MOST_DIGITS = 300  # more than float64 holds
_LIST = r"^\s*\[[\d\s.,eE+-]+\]\s*$"
_LONG_NUMBER = r"^\s*[+-]?\d{16,}\s*$"  # 2**53, up to which float64 has all, has 16 digits
_NUMBER = r"^\s*[+-]?\.?\d"
_OTHER_NUMBER = r"^\s*[+-]?\d+([,_ ']\d+)+(\.\d+)?\s*$|^\s*[+-]?\d{1,3}(\.\d{3})*,\d+\s*$"
_WHOLE_NUMBER = re.compile(r"[+-]?\d+")


class _Digits(str):
    """A number as a JSON file has it."""

    __slots__ = ()


_JSON_KINDS = {
    _Digits: "number", float: "number", bool: "boolean", str: "string", dict: "object",
    list: "list", type(None): "null",
}  # fmt: skip
_NOT_BLANK = re.compile(r"\S")


def read_csv(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of CSV files; a cell like ``[1, 2, 3]`` is a list.

    The columns of ids and groups are strings as the file has them: ``01`` is not ``1``.

    Raises:
        DecodeError: If a file is not CSV, a value is missing, a cell's list is wrong, a number is
            held exactly by neither int64 nor float64, or numbers stand among booleans.
        ConfigError: If a requested column does not exist, another delimiter separates the columns,
            or the first line does not name them.
    """
    return iter_concatenated(files, options, _read_csv)


def _read_csv(files: Sequence[SourceFile], options: ReadOptions) -> pa.Table:
    import pyarrow.compute as pc

    names = options.naming_columns
    tables = _read_each("csv", files, partial(_read_csv_file, options=options))
    table = concatenate("csv", tables)
    for name in names:
        if name in table.column_names:
            texts = table.column(name)
            refuse_missing(name, pc.if_else(pc.equal(texts, ""), None, texts))
    with _name_lines(files, tables, partial(_find_csv_line, options=options)):
        table = parse_list_cells(table, names)
    _warn_of_number_strings(table, names)
    return table


def _read_csv_file(path: str, options: ReadOptions) -> pa.Table:
    _check_delimiter(path, options)
    table = _parse_csv(path, options, options.naming_columns)
    if options.thousands is not None:
        table = _join_thousands(table, options)
    with _name_lines(
        [SourceFile(Path(path), path)], [table], partial(_find_csv_line, options=options)
    ):
        for name in _find_doubtful_columns(table):
            texts = _parse_csv(path, options, [name], only=[name]).column(name)
            _refuse_doubtful(name, table.column(name), texts)
    return table


def _parse_csv(
    path: str, options: ReadOptions, texts: Iterable[str], only: Sequence[str] = ()
) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    file = open_decompressed(path) if options.comment is None else _read_uncommented(path, options)
    with file:
        return arrow_csv.read_csv(
            file,
            read_options=arrow_csv.ReadOptions(
                block_size=_BLOCK_BYTES, encoding=_detect_encoding(path)
            ),
            parse_options=arrow_csv.ParseOptions(
                newlines_in_values=True, delimiter=options.delimiter or _DELIMITER
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in texts},
                include_columns=list(only),
                decimal_point=options.decimal or ".",
            ),
        )


def _read_uncommented(path: str, options: ReadOptions) -> io.BytesIO:
    """Return the content of a CSV file without lines that begin with the mark of a comment."""
    encoding = _detect_encoding(path)
    with _open_csv(path, options, errors="surrogateescape") as lines:  # bytes stay as they are
        return io.BytesIO("".join(line for _, line in lines).encode(encoding, "surrogateescape"))


@contextmanager
def _open_csv(
    path: str, options: ReadOptions, errors: str = "replace"
) -> Iterator[Iterator[tuple[int, str]]]:
    """Open a CSV file within the block; yield its lines without comments, counted from 1."""
    encoding = _detect_encoding(path)
    with io.TextIOWrapper(open_decompressed(path), encoding, errors=errors, newline="") as file:
        mark = options.comment
        numbered = ((number, line.removeprefix("\ufeff")) for number, line in enumerate(file, 1))
        yield (each for each in numbered if mark is None or not each[1].startswith(mark))


def _join_thousands(table: pa.Table, options: ReadOptions) -> pa.Table:
    """Return a table whose numbers with separators of thousands are numbers.

    A column is one of these if all its strings are numbers, and one has a separator. Numbers with a
    fraction become float64, others int64.
    """
    from pyarrow import compute, types

    mark, point = re.escape(str(options.thousands)), re.escape(options.decimal or ".")
    pattern = rf"^\s*[-+]?(\d{{1,3}}({mark}\d{{3}})+|\d+)({point}\d*)?\s*$"
    for at, column in enumerate(table.schema):
        texts = table.column(at)
        if column.name in options.naming_columns or not types.is_string(column.type):
            continue
        if not compute.all(compute.match_substring_regex(texts, pattern), min_count=1).as_py():
            continue
        plain = compute.replace_substring(texts, str(options.thousands), "")
        plain = compute.replace_substring(plain, options.decimal or ".", ".")
        plain = compute.replace_substring_regex(plain, r"^\s*\+?|\s*$", "")
        is_whole = not compute.any(compute.match_substring(plain, ".")).as_py()
        long_numbers = compute.match_substring_regex(plain, _LONG_NUMBER)
        for row in compute.indices_nonzero(long_numbers).to_pylist():
            text = plain[row].as_py()
            if is_whole and not -(1 << 63) <= int(text) < 1 << 63:
                raise _make_inexact_error(column.name, row, text)
            if not is_whole:
                _refuse_inexact(column.name, row, text)
        table = table.set_column(at, column.name, plain.cast("int64" if is_whole else "float64"))
    return table


def _check_delimiter(path: str, options: ReadOptions) -> None:
    """Raise if the first line of a CSV file holds a list, or needs another delimiter.

    Raises:
        ConfigError: If the line holds a list, or only another delimiter splits it into columns.
    """
    with _open_csv(path, options) as lines:
        line = next((line for _, line in lines if line.strip()), "").strip("\r\n")
    if line.startswith("[") or '"[' in line:
        raise ConfigError.at(
            f"file {path!r}: must have the names of its columns in the first line, but has a list: "
            f"{line!r:.60}. Add a line with names",
            file=path,
        )
    counts = {mark: len(next(csv.reader([line], delimiter=mark), ())) for mark in _DELIMITERS}
    found = max(counts, key=lambda mark: counts[mark])
    used = options.delimiter or _DELIMITER
    if len(next(csv.reader([line], delimiter=used), ())) > 1 or counts[found] < 2:
        return
    raise ConfigError.at(
        f"file {path!r}: must have columns separated by {used!r}, but its first line is "
        f"{line!r:.60}, with {counts[found]} columns separated by {found!r}. Pass "
        f"`delimiter={found!r}` to `seqdata write` (and `decimal=','` where numbers have a comma), "
        "or convert the file",
        file=path,
    )


def _detect_encoding(path: str) -> str:
    """Return the encoding of a text file: UTF-8, or the one that its first bytes mark.

    Raises:
        DecodeError: If the file begins with NUL bytes and without a mark, as UTF-16 without a mark
            and binary files do.
    """
    with open_decompressed(path) as file:
        head = file.read(_HEAD_BYTES)
    for mark, encoding in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return encoding
    if b"\0" not in head:
        return "utf8"
    name = "UTF-16BE" if head.startswith(b"\0") else "UTF-16LE"
    raise DecodeError.at(
        f"file {path!r}: must be UTF-8 text, but has NUL bytes near its start, so it is UTF-16 or "
        f"a binary file. Convert it, for example with `iconv -f {name} -t UTF-8`",
        file=path,
    )


def _find_csv_line(path: str, row: int, options: ReadOptions) -> int:
    """Return the line of a file, counted from 1, in which a row of its table ends."""
    with _open_csv(path, options) as lines:
        line_numbers, texts = itertools.tee(lines)
        reader = csv.reader((text for _, text in texts), delimiter=options.delimiter or _DELIMITER)
        rows = (cells for cells in reader if cells)
        next(itertools.islice(rows, row + 1, None), None)  # the first one has the names
        return next(itertools.islice(line_numbers, max(0, reader.line_num - 1), None), (1, ""))[0]


def read_jsonl(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of files with a JSON object per line; raises as ``read_csv`` does."""
    refuse_csv_options("jsonl", options)
    return iter_concatenated(files, options, _read_jsonl)


def _read_jsonl(files: Sequence[SourceFile], options: ReadOptions) -> pa.Table:
    tables = _read_each("jsonl", files, partial(_read_json_file, names=options.naming_columns))
    return concatenate("jsonl", tables)


def _read_json_file(path: str, names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    if (encoding := _detect_encoding(path)) != "utf8":
        raise DecodeError.at(
            f"file {path!r}: must be UTF-8 text, but is in {encoding.upper()}. Convert it, for "
            f"example with `iconv -f {encoding.upper()} -t UTF-8`",
            file=path,
        )
    try:
        table = _parse_json(path, names)
        large = _find_large_floats(table)
    except pa.ArrowException:
        _refuse_json_line(path)
        raise
    with _name_lines([SourceFile(Path(path), path)], [table], _find_json_line):
        for row, (parsed, _) in enumerate(_iter_json(path) if large else ()):
            for name in large:
                _refuse_inexact(name, row, parsed.get(name, 0))
    return table


def _iter_json(path: str) -> Iterator[tuple[Any, int]]:
    """Yield the objects of a file, with numbers as strings, and the line of each."""
    with io.TextIOWrapper(open_decompressed(path), "utf-8-sig") as file:
        text = file.read()
    at, line, counted = 0, 1, 0
    decoder = json.JSONDecoder(parse_int=_Digits, parse_float=_Digits, strict=False)
    while (found := _NOT_BLANK.search(text, at)) is not None:
        line, counted = line + text.count("\n", counted, found.start()), found.start()
        try:
            parsed, at = decoder.raw_decode(text, found.start())
        except ValueError:
            parsed, at = _NOT_JSON, len(text)
        yield parsed, line


def _find_json_line(path: str, row: int) -> int:
    return next(itertools.islice(_iter_json(path), row, None))[1]


def _refuse_json_line(path: str) -> None:
    """Raise if a line is of a kind that PyArrow does not read, with a reason in terms of the file.

    Raises:
        DecodeError: If a line is not an object, a list holds null, a number is out of range, or a
            column holds values of two kinds.
    """
    first: dict[str, tuple[str, int]] = {}  # by column: the kind of its values, and its first line
    for parsed, line in _iter_json(path):
        reason = ""
        if not isinstance(parsed, dict):
            found = "no JSON" if parsed is _NOT_JSON else f"a {_JSON_KINDS[type(parsed)]}"
            reason = f"must be a JSON object, but is {found}. Write an object per line"
        for name, value in parsed.items() if not reason else ():
            kinds = set(_iter_kinds(value))
            if isinstance(value, list) and "null" in kinds:
                reason = f"must have values in column {name!r}, but has null in a list. Fill it"
            elif "number out of range" in kinds:
                reason = (
                    f"must have numbers that float64 holds in column {name!r}, but has a larger "
                    "one. Write such numbers as text"
                )
            elif kinds := kinds - {"null"}:
                kind, earlier = first.setdefault(name, (min(kinds), line))
                others = kinds - {kind}
                reason = reason or (
                    f"must have values of one kind in column {name!r}, but has a {min(others)} "
                    f"besides a {kind} of line {earlier}. Write one of them throughout"
                    if others
                    else ""
                )
        if reason:
            raise DecodeError.at(f"file {path!r}: line {line} {reason}", file=path)


def _iter_kinds(value: Any) -> Iterator[str]:
    """Yield the kind of a JSON value, or of each value in a list."""
    if isinstance(value, list):
        for part in value:
            yield from _iter_kinds(part)
    elif isinstance(value, _Digits) and not np.isfinite(float(value)):
        yield "number out of range"
    else:
        yield _JSON_KINDS[type(value)]


def _parse_json(path: str, names: Sequence[str]) -> pa.Table:
    """Return the table of a file; strings in columns ``names`` stay strings if they are dates."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    block = arrow_json.ReadOptions(block_size=_BLOCK_BYTES)
    with open_decompressed(path) as file:
        table = arrow_json.read_json(file, read_options=block)
    types = {name: table.schema.field(name).type for name in names if name in table.column_names}
    dates = [name for name, type_ in types.items() if pa.types.is_timestamp(type_)]
    if not dates:
        return table
    texts = arrow_json.ParseOptions(explicit_schema=pa.schema([(n, pa.string()) for n in dates]))
    with open_decompressed(path) as file:
        return arrow_json.read_json(file, read_options=block, parse_options=texts)


def _read_each(
    format_name: str, files: Iterable[SourceFile], read: Callable[[str], pa.Table]
) -> list[pa.Table]:
    tables = [
        add_partition(_read_checked(format_name, file, partial(read, str(file.path))), file)
        for file in files
    ]
    for table in tables:
        check_unique_names(table.column_names)
    return tables


def _read_checked(format_name: str, file: SourceFile, read: Callable[[], Any]) -> Any:
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DecodeError.at(
            f"file {str(file.path)!r}: must be {format_name}, but cannot be read as such "
            f"({reason}). Check it, or name its format (`--format` of `seqdata write`)",
            file=str(file.path),
        ) from error


@contextmanager
def _name_lines(
    files: Sequence[SourceFile], tables: Sequence[pa.Table], find_line: Callable[[str, int], int]
) -> Iterator[None]:
    """Add the file and the line to errors about a row.

    Args:
        files: The files.
        tables: The table of each; rows of errors are those of all tables, one after the other.
        find_line: Function that returns the line of a file that holds a row of its table.
    """
    try:
        yield
    except DecodeError as error:
        row = error.details.get("row")
        if not isinstance(row, int):
            raise
        stops = np.cumsum([table.num_rows for table in tables])
        index = int(np.searchsorted(stops, row, side="right"))
        path = str(files[index].path)
        line = find_line(path, row - int(stops[index]) + tables[index].num_rows)
        place = f"in line {line} of the file {path!r}"
        raise error.with_place(place, file=path) from error


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
    for index, column in enumerate(table.schema):
        if column.name in text_columns or not types.is_string(column.type) or not table.num_rows:
            continue
        if not compute.all(compute.starts_with(table.column(index), "[")).as_py():
            continue
        texts = convert_column(column.name, combine_column(table, index))
        if isinstance(texts, list):
            table = table.set_column(index, column.name, _parse_cells(column.name, texts))
    return table


def _parse_cells(name: str, texts: list[str]) -> pa.Array:
    import pyarrow as pa

    cells = [_parse_cell(name, row, text) for row, text in enumerate(texts)]
    nonempty = [cell for cell in cells if len(cell)]
    offsets = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])]).astype(np.int64)
    values = np.concatenate(nonempty) if nonempty else np.empty(0)
    if _are_large(values):
        for row, text in enumerate(texts):
            _refuse_inexact(name, row, json.loads(text, parse_int=str, parse_float=str))
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


def _find_large_floats(table: pa.Table) -> list[str]:
    """Return the columns of floats, or of lists of floats, that may be rounded integers.

    A parser of text makes float64 of integers beyond int64, and of integers in a column with
    fractions. Float64 represents all integers only up to 2**53.
    """
    return [
        column.name
        for index, column in enumerate(table.schema)
        if _are_large(_flatten_floats(combine_column(table, index)))
    ]


def _find_doubtful_columns(table: pa.Table) -> list[str]:
    """Return the columns of a CSV file that ``_refuse_doubtful`` must check."""
    from pyarrow import types

    booleans = [column.name for column in table.schema if types.is_boolean(column.type)]
    return [*_find_large_floats(table), *booleans]


def _refuse_doubtful(name: str, column: Any, texts: Any) -> None:
    """Raise if the CSV parser changed the value of a number or boolean.

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
        _refuse_inexact(name, row, texts[row].as_py().strip())


def _warn_of_number_strings(table: pa.Table, names: Iterable[str]) -> None:
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
            warn(
                f"table: column {column.name!r} holds lists of numbers in some rows only, and is "
                f"read as strings. Write '[]' where a list is empty",
            )
        elif compute.all(compute.match_substring_regex(texts, _OTHER_NUMBER)).as_py():
            warn(
                f"table: column {column.name!r} holds strings such as {texts[0].as_py()!r}, which "
                "are not read as numbers. Pass `decimal=','` where that is the decimal point, or "
                "`thousands=','` where it separates thousands, to `seqdata write`",
            )


def _flatten_floats(column: Any) -> NDArray[Any]:
    while is_list(column.type):
        column = column.flatten()
    has_floats = str(column.type) == "double"
    return np.asarray(column.to_numpy(zero_copy_only=False)) if has_floats else np.empty(0)


def _are_large(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f" and bool((np.abs(values) >= _ALL_WHOLE).any())


def _refuse_inexact(name: str, row: int, text: str | float | list[Any]) -> None:
    """Raise if float64 would round an integer of a file, or make a number infinite.

    Args:
        name: The column of the number.
        row: The row of the number.
        text: The digits of the number, or a list of such; other values are ignored.

    Raises:
        DecodeError: If float64 does not hold the integer exactly, or the number at all.
    """
    if isinstance(text, list):
        for part in text:
            _refuse_inexact(name, row, part)
    elif isinstance(text, str) and not _is_exact(text):
        raise _make_inexact_error(name, row, text)


def _make_inexact_error(name: str, row: int, text: str) -> DecodeError:
    return DecodeError.at(
        f"table: row {row}, column {name!r} must have numbers that int64 or float64 hold "
        f"exactly, but has {text:.40}. Write such numbers as text, or in parts",
        field=name,
        row=row,
    )


def _is_exact(text: str) -> bool:
    if _WHOLE_NUMBER.fullmatch(text) is None:
        return math.isfinite(float(text))
    return len(text) <= _MOST_DIGITS and int(float(text)) == int(text)
