"""The lengths of the sequences of foreign files, counted once and cached next to the data.

Uncompressed lengths are read in place; compressed columns are decoded once for it, one unit at a
time. Ids are compared during the count, so a cached count is of files with unique ids.
"""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError
from seqdata.logical_types import Categories, parse_logical_type
from seqdata.storage.arrow_columns import (
    ColumnType,
    count_strings,
    decode_column,
    measure_row_lengths,
)
from seqdata.storage.data_location import narrow_lengths
from seqdata.storage.digest_trailer import read_with_digest, write_with_digest
from seqdata.storage.fields import ID_FIELD
from seqdata.storage.foreign.table_file import TableFile, translate_errors
from seqdata.storage.hashing import check_unique_ids, hash_texts
from seqdata.storage.limits import check_size

CACHE_PREFIX = ".seqdata-lengths-"
_REMEDY = f"give the column {ID_FIELD!r} another name: sequences then go by their number"
_LENGTH_BYTES = 8  # bytes per row while counting


@dataclass(frozen=True, slots=True, eq=False)
class LengthScan:
    """The result of a scan.

    Attributes:
        rows: int64 (units,), of all files in order.
        lengths: Ragged column -> number of timesteps of each row, integers (rows,).
        widths: Nested column -> narrowest and widest timestep; (0, 0) if there is none.
        vocabularies: Column of lists of strings -> its strings, in order of appearance.
    """

    rows: NDArray[np.int64]
    lengths: Mapping[str, NDArray[Any]]
    widths: Mapping[str, tuple[int, int]]
    vocabularies: Mapping[str, Categories]


def scan_lengths(
    folder: Path,
    files: Sequence[TableFile],
    column_types: Mapping[str, ColumnType],
    digest: str,
    *,
    ids: ColumnType | None = None,
) -> LengthScan:
    """Count the rows and lengths of files.

    Args:
        folder: The folder for the cached count, if a column had to be decoded and the folder is
            writable.
        files: The files.
        column_types: Ragged column -> its type.
        digest: Digest of the files; a count of other files is never used.
        ids: The type of the column ``ID_FIELD``, if ids must be unique.

    Raises:
        DecodeError: If a sequence is missing, or an id occurs twice; the message names column and
            row, or both sequences.
        CorruptShardError: If a file is damaged.
        LimitError: If there are very many rows for the bytes of a file.
    """
    cache = folder / f"{CACHE_PREFIX}{digest}.npz"
    must_decode = not all(file.is_mapped for file in files) or any(
        column_type.has_categories for column_type in column_types.values()
    )
    units = sum(file.units for file in files)
    if must_decode and (cached := _load(cache, column_types, units)) is not None:
        return cached
    found = _count_lengths(files, column_types)
    if ids is not None:
        _check_ids(files, ids)
    if must_decode:
        _save(cache, found)
    return found


@dataclass(slots=True)
class _ColumnLengths:
    lengths: list[NDArray[np.int64]] = field(default_factory=list)
    widths: list[tuple[int, int]] = field(default_factory=list)
    strings: dict[str, None] = field(default_factory=dict)


def _count_lengths(
    files: Sequence[TableFile], column_types: Mapping[str, ColumnType]
) -> LengthScan:
    rows: list[int] = []
    counting = {name: _ColumnLengths() for name in column_types}
    for file in files:
        file_rows = 0
        for unit in range(file.units):
            count = 0
            for name, column_type in column_types.items():
                location = file.locate_unit(unit, name)
                column = file.read_column(unit, name)
                lengths, widths = measure_row_lengths(location, column, column_type)
                if column_type.has_categories:
                    count_strings(location, column, counting[name].strings)
                counting[name].lengths.append(lengths)
                if widths is not None:
                    counting[name].widths.append(widths)
                count = len(lengths)
            rows.append(count)
            file_rows += count
            check_size(file.location, file.size, _LENGTH_BYTES * len(column_types) * file_rows)
    none = np.empty(0, dtype=np.int64)
    return LengthScan(
        np.array(rows, dtype=np.int64),
        {
            name: narrow_lengths(np.concatenate([none, *counter.lengths]))
            for name, counter in counting.items()
        },
        {
            name: _width_range(counter.widths)
            for name, counter in counting.items()
            if column_types[name].nested
        },
        {
            name: Categories(tuple(counter.strings))
            for name, counter in counting.items()
            if column_types[name].has_categories
        },
    )


def _check_ids(files: Sequence[TableFile], column_type: ColumnType) -> None:
    """Raise if an id occurs twice in all files; units are decoded again for the message."""
    units = [(file, unit) for file in files for unit in range(file.units)]
    hashes = [np.empty(0, dtype=np.uint64)]
    hashes += [hash_texts(*_read_ids(file, unit, column_type)) for file, unit in units]
    unit_offsets = np.cumsum([len(found) for found in hashes])

    def find_unit(number: int) -> int:
        return int(np.searchsorted(unit_offsets, number, side="right")) - 1

    @functools.lru_cache(maxsize=1)  # it is asked in order
    def read_unit(at: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        return _read_ids(*units[at], column_type)

    def id_for(number: int) -> str:
        at = find_unit(number)
        values, offsets = read_unit(at)
        first, stop = offsets[number - unit_offsets[at] :][:2]
        return str(values[first:stop].tobytes(), "utf-8", "replace")

    try:
        check_unique_ids(np.concatenate(hashes), id_for, remedy=_REMEDY)
    except DecodeError as error:
        file, unit = units[find_unit(cast(int, error.details["sequence"]))]
        location = file.locate_unit(unit, ID_FIELD)
        raise location.make_error(DecodeError, str(error), **error.details) from error


def _read_ids(
    file: TableFile, unit: int, column_type: ColumnType
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    location = file.locate_unit(unit, ID_FIELD)
    with translate_errors(location):
        decoded = decode_column(location, file.read_column(unit, ID_FIELD), column_type)
    return decoded.values, cast(NDArray[np.int64], decoded.offsets)  # as strings have


def _width_range(widths: list[tuple[int, int]]) -> tuple[int, int]:
    if not widths:
        return 0, 0
    return min(low for low, _ in widths), max(high for _, high in widths)


def _save(cache: Path, found: LengthScan) -> None:
    content: dict[str, Any] = {"rows": found.rows}
    content |= {f"lengths/{name}": lengths for name, lengths in found.lengths.items()}
    content |= {f"widths/{name}": np.array(widths) for name, widths in found.widths.items()}
    content |= {
        f"vocabulary/{name}": np.frombuffer(json.dumps(categories.values).encode(), np.uint8)
        for name, categories in found.vocabularies.items()
    }
    file = io.BytesIO()
    np.savez(file, **content)
    write_with_digest(cache, file.getvalue())  # counted again next time if it cannot be cached


def _load(cache: Path, column_types: Mapping[str, ColumnType], units: int) -> LengthScan | None:
    """Return the cached count; None if there is none, or it is invalid."""
    content = read_with_digest(cache)
    if content is None:
        return None
    size = len(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            rows = _read_array(archive, "rows", size)
            lengths = {name: _read_array(archive, f"lengths/{name}", size) for name in column_types}
            nested = [name for name, column_type in column_types.items() if column_type.nested]
            widths = {name: _read_array(archive, f"widths/{name}", size) for name in nested}
            vocabularies = {
                name: _parse_vocabulary(_read_array(archive, f"vocabulary/{name}", size))
                for name, column_type in column_types.items()
                if column_type.has_categories
            }
    except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
        return None
    if rows.shape != (units,) or rows.dtype != np.int64 or (rows < 0).any():
        return None
    count = int(rows.sum())
    is_valid = all(
        array.shape == (count,) and array.dtype.kind == "u" for array in lengths.values()
    )
    is_valid = is_valid and all(
        width.shape == (2,) and width.dtype.kind == "i" for width in widths.values()
    )
    pairs = (
        {name: (int(width[0]), int(width[1])) for name, width in widths.items()} if is_valid else {}
    )
    return LengthScan(rows, lengths, pairs, vocabularies) if is_valid else None


def _parse_vocabulary(content: NDArray[np.uint8]) -> Categories:
    """Return a vocabulary from its JSON.

    Raises:
        ValueError: If it is not one.
    """
    plain = {"type": "categories", "values": json.loads(content.tobytes())}
    categories = parse_logical_type(plain)
    if not isinstance(categories, Categories):
        raise ValueError("not a vocabulary")
    return categories


def _read_array(archive: zipfile.ZipFile, name: str, size: int) -> NDArray[Any]:
    """Return one array of the archive, which must be stored as by ``numpy.savez``.

    Raises:
        ValueError: If the array is stored in a different way.
        KeyError: If it does not exist.
    """
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise ValueError(f"{name} is compressed or encrypted")  # its sizes would have to be trusted
    if entry.file_size != entry.compress_size or entry.file_size > size:
        raise ValueError(f"{name} extends beyond the file")
    file = io.BytesIO(archive.read(entry))
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{name} is of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject or len(shape) != 1:
        raise ValueError(f"{name} does not hold numbers")
    return np.frombuffer(file.getvalue(), dtype, offset=file.tell(), count=shape[0])
