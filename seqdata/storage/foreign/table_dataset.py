"""Foreign files, opened and surveyed: their fields, axes and lengths, and where values come from.

Place in the flow: files in, what the foreign store is made of out. Reads: schemas, list columns.
Makes: sources.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.columns import Layout, Source
from seqdata.storage.data_location import Place
from seqdata.storage.decoded_source import DecodedSource, UnitCache
from seqdata.storage.fields import MAX_WIDTH, TEXTS, field_width
from seqdata.storage.foreign.arrow_columns import (
    Decoded,
    Kind,
    decode,
    depth_of,
    has_nulls,
    kind_of,
)
from seqdata.storage.foreign.file_discovery import files_of
from seqdata.storage.foreign.length_scan import survey
from seqdata.storage.foreign.table_file import (
    TableFile,
    digest_of,
    guarded,
    mark_of,
    open_file,
    stamp_of_local,
)
from seqdata.storage.inputs import is_pandas_index
from seqdata.storage.limits import check_depth, refuse
from seqdata.storage.store_fields import keyed
from seqdata.storage.text_source import TextSource

Units = list[tuple[TableFile, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Opened files, what their columns hold, and how long their rows are.

    Attributes:
        folder: Where the files lie.
        files: In the order of their sequences.
        kinds: Column -> what it holds.
        fields: The same, as fields.
        rows: int64 (units,), of all files in order.
        lengths_of: Axis -> timesteps of each sequence.
    """

    folder: Path
    files: Sequence[TableFile]
    kinds: Mapping[str, Kind]
    fields: Mapping[str, Field]
    rows: NDArray[np.int64]
    lengths_of: Mapping[str, NDArray[Any]]

    def units(self) -> Units:
        """Give all units of all files in order."""
        return [(file, unit) for file in self.files for unit in range(file.units)]

    def decode(self, name: str, units: Units, number: int) -> Decoded:
        """Give one column of one unit."""
        file, unit = units[number]
        kind = self.kinds[name]
        width = kind.shape[0] if kind.nested else None
        where = file.place_of(unit, name)
        with guarded(where):
            array = file.column(unit, name)
            if len(array) != self.rows[number]:
                raise where.error(
                    CorruptShardError,
                    f"has {len(array)} rows, must have {self.rows[number]} as were counted; "
                    "restore the file",
                    found=len(array), expected=int(self.rows[number]),
                )  # fmt: skip
            return decode(where, array, kind, width)

    def in_place(self, name: str) -> bool:
        """Tell whether a column's bytes can be used as they lie, in all files."""
        for file in self.files:
            kind = kind_of(file.schema.field(name).type)
            if not file.mapped or kind is None or not kind.plain:
                return False
            if any(has_nulls(file.column(unit, name)) for unit in range(file.units)):
                return False
        return True


def open_tables(root: Path) -> tuple[Tables, dict[str, str]]:
    """Open a file, or the files of a folder; also gives the columns left out, with the reason.

    Raises:
        ConfigError: If nothing is there.
        DataError: If the files do not go together, or no column holds lists of numbers.
        DecodeError: If a sequence is missing; naming column and row.
        CorruptShardError: If a file is damaged.
    """
    folder, names = files_of(root)
    return tables_of(str(root), folder, {name: folder / name for name in names})


def tables_of(
    location: str,
    folder: Path,
    paths: Mapping[str, Path],
    stamp_of: Callable[[Path], str] = stamp_of_local,
) -> tuple[Tables, dict[str, str]]:
    """Open files, wherever they lie; as ``open_tables``.

    Args:
        location: Of the data set, for messages.
        folder: Where a count of lengths is kept.
        paths: Name of a file -> where it lies here, in the order of their sequences.
        stamp_of: Gives what a version of a file has for its own.
    """
    files = [
        open_file(path, Place(dataset=location, shard=i, file=name), stamp_of)
        for i, (name, path) in enumerate(paths.items())
    ]
    kinds, left_out = _kinds(files)
    ragged = {name: kind for name, kind in kinds.items() if kind.ragged}
    if not ragged:
        raise _nothing_ragged(location, left_out)
    found = survey(folder, files, ragged, mark_of(files, digest_of(files, ragged)))
    for name, (low, high) in found.widths.items():
        if low == high:
            kinds[name] = replace(kinds[name], shape=(max(1, low), *kinds[name].shape))
            check_width(replace(files[0].place, field=name), kinds[name])
        else:
            left_out[name] = f"{low} to {high} numbers per timestep"
            del kinds[name]
    if not any(kind.ragged for kind in kinds.values()):
        raise _nothing_ragged(location, left_out)
    if not found.rows.sum():
        raise Place(dataset=location).error(
            DataError, "has no rows, must have at least one; check where it comes from"
        )
    axes, lengths_of = _axes(kinds, found.lengths)
    fields = {name: Field(one.dtype, one.shape, axes.get(name)) for name, one in kinds.items()}
    return Tables(folder, files, kinds, fields, found.rows, lengths_of), left_out


def sources_of(
    location: str, tables: Tables, key: str | None
) -> tuple[Layout, dict[str, Source | TextSource | DecodedSource]]:
    """Give where sequences lie, and the source of every field.

    Args:
        location: Of the data set, for messages.
        tables: What was opened.
        key: The text column of ids, where there is one.
    """
    units = tables.units()
    named = [f"{file.name}#{unit}" if file.units > 1 else file.name for file, unit in units]
    starts = [0, *itertools.accumulate(tables.rows.tolist())]
    places = [file.place_of(unit) for file, unit in units]
    layout = Layout(location, named, starts, tables.lengths_of, places.__getitem__)
    cache = UnitCache()

    def source_of(name: str, layout: Layout) -> Source | TextSource | DecodedSource:
        decoded, field = functools.partial(tables.decode, name, units), tables.fields[name]
        if tables.in_place(name):
            return _source(name, field, layout, [decoded(i) for i in range(len(units))])
        return DecodedSource(name, field, layout, decoded, cache)

    ids = None if key is None else source_of(key, layout)
    if isinstance(ids, TextSource | DecodedSource):
        layout = keyed(layout, ids)
    return layout, {name: source_of(name, layout) for name in tables.fields}


def _kinds(files: Sequence[TableFile]) -> tuple[dict[str, Kind], dict[str, str]]:
    """Give what the columns hold, and those that cannot be fields, with the reason."""
    kinds: dict[str, Kind] = {}
    left_out: dict[str, str] = {}
    for column in files[0].schema:
        kind = kind_of(column.type)
        if is_pandas_index(column.name):
            left_out[column.name] = "an index of pandas without a name"
            continue
        if kind is None:
            left_out[column.name] = str(column.type)
            continue
        kinds[column.name] = kind
        place = replace(files[0].place, field=column.name)
        check_depth(place, depth_of(column.type))
        check_width(place, kind)
    for file in files:
        if len(set(file.schema.names)) < len(file.schema.names):
            raise file.place.error(
                DataError, "has two columns of one name, must have different ones; rename one"
            )
        for name, kind in kinds.items():
            _check_alike(files[0], file, name, kind)
    return kinds, left_out


def check_width(place: Place, kind: Kind) -> None:
    """Refuse timesteps that no memory holds.

    Raises:
        LimitError: If one takes ``MAX_WIDTH`` bytes or more.
    """
    width = 1 if kind.is_text else field_width(Field(kind.dtype, kind.shape))
    if width >= MAX_WIDTH:
        what = f"declares timesteps of {width} bytes"
        refuse(place, what, f"have less than {MAX_WIDTH}", width, MAX_WIDTH)


def _check_alike(first: TableFile, file: TableFile, name: str, kind: Kind) -> None:
    there = name in file.schema.names
    if there and kind.alike(kind_of(file.schema.field(name).type)):
        return
    found = file.schema.field(name).type if there else "missing"
    raise replace(file.place, field=name).error(
        DataError,
        f"is {found}, must be {first.schema.field(name).type} as in {first.name!r}; write the "
        "files alike, or open them one by one",
    )


def _axes(
    kinds: Mapping[str, Kind], lengths: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Give column -> axis and axis -> lengths: columns of equal lengths share an axis."""
    axes: dict[str, str] = {}
    lengths_of: dict[str, NDArray[Any]] = {}
    for name, kind in kinds.items():
        if not kind.ragged:
            continue
        found = lengths[name]
        same = (axis for axis, known in lengths_of.items() if np.array_equal(known, found))
        axis = next(same, None)
        if axis is None:
            axis = name if lengths_of else DEFAULT_AXIS
            while axis in lengths_of:
                axis += "_"
            lengths_of[axis] = found
        axes[name] = axis
    return axes, lengths_of


def _source(
    name: str, field: Field, layout: Layout, decoded: Sequence[Decoded]
) -> Source | TextSource:
    values = tuple(one.values for one in decoded)
    offsets = tuple(one.offsets for one in decoded if one.offsets is not None)
    if field.dtype in TEXTS:
        return TextSource.of(name, field, layout, values, offsets)
    return Source.of(name, field, layout, values, offsets or None)


def _nothing_ragged(location: str, left_out: Mapping[str, str]) -> DataError:
    refused = ", ".join(f"{name!r} ({why})" for name, why in left_out.items())
    return Place(dataset=location).error(
        DataError,
        "no column holds lists of numbers, one at least must, for a row is a sequence"
        f"{f'; left out: {refused}' if refused else ''}; make sequences of the rows of one value "
        "with `seqdata write --group COLUMN`",
    )
