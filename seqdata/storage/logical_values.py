"""Dates, durations and strings per timestep as integers, and the packer of such fields.

Values of the user (NumPy, pandas, Polars, Arrow, lists) become integers with a logical type before
anything is stored; what would be rounded or is missing is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.kernel.pack_rows import FieldBuffer
from seqdata.logical_types import (
    UNITS,
    Categories,
    Duration,
    LogicalType,
    Timestamp,
    describe_codes,
)
from seqdata.storage.packing import FieldMismatch, FixedPacker, RaggedPacker

if TYPE_CHECKING:
    import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY = 86_400
_SHORTER_UNIT = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}  # one that is kept
_TEMPORAL = (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)
_NO_DTYPE = np.dtype([("never the dtype of values", "V1")])


@dataclass(frozen=True, slots=True, eq=False)
class EncodedValues:
    """Integers of the user's values, and their logical type.

    Attributes:
        values: int64 dates or durations, or int32 codes of strings; of any shape.
        logical: Their logical type.
    """

    values: NDArray[Any]
    logical: LogicalType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions of the values."""
        return self.values.ndim

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> EncodedValues:
        return EncodedValues(np.asarray(self.values[rows]), self.logical)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedColumn:
    """A column of dates, durations or strings per timestep, as integers.

    Attributes:
        values: (timesteps, *shape), int64 or int32.
        offsets: int64 (rows+1,), row -> values; None: one value each.
        logical: Their logical type.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None
    logical: LogicalType

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, row: int) -> EncodedValues:
        if self.offsets is None:
            return EncodedValues(np.asarray(self.values[row]), self.logical)
        start, stop = self.offsets[row : row + 2]
        return EncodedValues(self.values[start:stop], self.logical)


def encode_values(value: Any) -> EncodedValues | None:
    """Return the integers of dates, durations or strings per timestep; None of other values.

    Args:
        value: A date, or an array, a series or a list of dates or strings.

    Raises:
        FieldMismatch: If a value is missing, or its type differs from that of the others.
    """
    if isinstance(value, EncodedValues):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        return _encode_array(np.asarray(value))
    if isinstance(value, _TEMPORAL):
        found = _encode_list([value])
        return None if found is None else found[0]
    if isinstance(value, list | tuple) or type(value) is np.ndarray:
        return _encode_list(list(value)) if np.ndim(value[:1] if len(value) else 0) == 1 else None
    return _encode_series(value)


def _encode_array(array: NDArray[Any]) -> EncodedValues | None:
    if array.dtype.kind == "U" and array.ndim:
        return _encode_strings(array.reshape(-1).tolist(), array.shape)
    if array.dtype.kind not in "Mm":
        return None
    unit = str(np.datetime_data(array.dtype)[0])
    is_date = array.dtype.kind == "M"
    kept = unit if unit in UNITS else _SHORTER_UNIT.get(unit)
    if kept is None or (not is_date and unit in "YM"):
        raise FieldMismatch(
            f"must be dates or durations in {', '.join(UNITS)}, but has dtype {array.dtype.name}. "
            "Convert it with astype"
        )
    if np.isnat(array).any():
        raise FieldMismatch("has missing dates (NaT), which cannot be stored; fill them")
    converted = array.astype(f"{array.dtype.kind}8[{kept}]")
    if (converted.astype(array.dtype) != array).any():
        raise FieldMismatch(f"has dates that {kept!r} cannot represent. Convert it with astype")
    logical = Timestamp(kept) if is_date else Duration(kept)  # type: ignore[arg-type]
    return EncodedValues(converted.view(np.int64), logical)


def _encode_list(items: list[Any]) -> EncodedValues | None:
    if isinstance(items[0], str):
        return _encode_strings(items, (len(items),))
    if not isinstance(items[0], _TEMPORAL):
        return None
    others = [item for item in items if type(item) is not type(items[0])]
    if others:
        raise FieldMismatch(
            f"must hold dates or durations of one type, but holds {items[0]!r} and {others[0]!r}. "
            "Convert them"
        )
    zones = {str(getattr(item, "tzinfo", None)) for item in items}
    if len(zones) > 1:
        raise FieldMismatch(
            f"must hold dates in one time zone, but holds {', '.join(sorted(zones))}. Convert them"
        )
    import pyarrow as pa

    if not hasattr(items[0], "asm8"):  # of pandas, whose nanoseconds Arrow would drop
        is_numpy = isinstance(items[0], np.generic)
        return _encode_array(np.array(items)) if is_numpy else encode_arrow(pa.array(items))
    encoded = _encode_array(np.array([item.asm8 for item in items]))
    if encoded is None or getattr(items[0], "tzinfo", None) is None:
        return encoded
    zone = pa.array(items[:1]).type.tz
    return EncodedValues(encoded.values, replace(encoded.logical, timezone=zone))


def _encode_strings(items: list[Any], shape: tuple[int, ...]) -> EncodedValues:
    try:
        values = tuple(dict.fromkeys(items))
    except TypeError:
        values = (None,)
    other = next((value for value in values if type(value) is not str), None)
    if other is not None or None in values:
        found = next(item for item in items if type(item) is not str)
        raise FieldMismatch(
            f"must hold a string per timestep, but holds {found!r}, a {type(found).__name__}. "
            "Give strings only; a missing one as a string of its own, such as ''"
        )
    return EncodedValues(_look_up(items, Categories(values)).reshape(shape), Categories(values))


def _look_up(items: Iterable[str], categories: Categories) -> NDArray[np.int32]:
    return np.fromiter(map(categories.codes.__getitem__, items), dtype=np.int32)


def _encode_series(value: Any) -> EncodedValues | None:
    """Encode a series of pandas, Polars or Arrow that does not hold numbers."""
    library = type(value).__module__.partition(".")[0]
    if library not in ("pandas", "polars", "pyarrow"):
        return None
    import pyarrow as pa

    if library == "polars":
        value = value.to_arrow()
    elif library == "pandas":
        if getattr(getattr(value, "dtype", None), "kind", "O") in "biufc":
            return None
        try:
            value = pa.Array.from_pandas(value)
        except (pa.ArrowException, TypeError):
            return None
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    return encode_arrow(value) if isinstance(value, pa.Array) else None


def find_logical_type(type_: pa.DataType) -> LogicalType | None:
    """Return the logical type of a column of dates or durations; None of others."""
    from pyarrow import types

    if types.is_timestamp(type_):
        return Timestamp(type_.unit, type_.tz)
    if types.is_date(type_):
        return Timestamp("D" if types.is_date32(type_) else "ms")
    return Duration(type_.unit) if types.is_duration(type_) else None


def holds_strings(type_: pa.DataType) -> bool:
    """Return whether a type of Arrow is of strings, or of codes of them."""
    from pyarrow import types

    type_ = type_.value_type if types.is_dictionary(type_) else type_
    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    )


def encode_arrow(array: pa.Array) -> EncodedValues | None:
    """Return the integers of an Arrow array of dates, durations or strings; None of others.

    Raises:
        FieldMismatch: If a value is missing.
    """
    import pyarrow as pa

    logical = find_logical_type(array.type)
    if logical is None and not holds_strings(array.type):
        return None
    if array.null_count:
        raise FieldMismatch(
            f"has {array.null_count} missing values, which cannot be stored; fill them"
        )
    if logical is not None:
        return EncodedValues(view_integers(array), logical)
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.large_string()).dictionary_encode()
    values = tuple(array.dictionary.cast(pa.large_string()).to_pylist())
    codes = array.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if len(set(values)) < len(values) or None in values:
        items = [values[code] for code in codes.tolist()]
        return _encode_strings(items, (len(items),))
    return EncodedValues(codes.astype(np.int32), Categories(values))


def view_integers(array: pa.Array) -> NDArray[np.int64]:
    """Return dates or durations of Arrow as the int64 that they are stored as, (values,)."""
    wide = array.type.bit_width == 64
    integers = view_numbers(array.view("int64" if wide else "int32"))
    return integers.astype(np.int64, copy=False)


def view_numbers(array: pa.Array) -> NDArray[Any]:
    """Return the numbers of an Arrow array, (values,).

    Integers and floats without nulls are a read-only view; other values are copied.

    Arrow's own ``to_numpy`` imports pandas, which takes longer than to open most tables.
    """
    from pyarrow import types

    is_plain = types.is_integer(array.type) or types.is_floating(array.type)
    if array.null_count or not is_plain or not len(array):
        found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return found
    dtype = np.dtype(array.type.to_pandas_dtype())
    begin = array.offset * dtype.itemsize
    values = np.frombuffer(array.buffers()[1], dtype, len(array), begin)
    values.flags.writeable = False
    return values


class LogicalPacker:
    """Collects integers of a field with a logical type.

    Implements ``Packer``.

    Args:
        packer: Collects the integers.
        logical: The logical type of the field.
    """

    __slots__ = ("_logical", "_packer")

    def __init__(self, packer: RaggedPacker | FixedPacker, logical: LogicalType) -> None:
        self._packer = packer
        self._logical = logical

    def add(self, value: Any) -> int:
        """Append the value of one sequence; return its size in bytes."""
        if isinstance(value, list | tuple) and not len(value):
            return self._packer.add(value)
        encoded = encode_values(value)
        if encoded is None:
            raise FieldMismatch(
                f"must hold {self._logical} as in sequence 0, but is {_describe(value)}. Convert it"
            )
        return self._packer.add(convert_values(encoded, self._logical))

    def take(self) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
        """Return (integers, offsets or None) of the added sequences, and reset."""
        return self._packer.take()

    def reserve(self, name: str, max_sequences: int) -> FieldBuffer:
        """Return space that the kernel never fills: values must be encoded first."""
        space = self._packer.reserve(name, max_sequences)
        return space._replace(type=type(self), dtype=_NO_DTYPE)

    def commit(self, count: int, used: int) -> None:
        """Commit rows to the packer of the integers; the kernel copies no values itself."""
        self._packer.commit(count, used)


def _describe(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return f"a {type(value).__name__}{'' if dtype is None else f' of {dtype}'}"


def convert_values(encoded: EncodedValues, logical: LogicalType) -> NDArray[Any]:
    """Return integers as another logical type counts them.

    Raises:
        FieldMismatch: If that type cannot represent them exactly.
    """
    if encoded.logical is logical or encoded.logical == logical:
        return encoded.values
    if isinstance(logical, Categories) and isinstance(encoded.logical, Categories):
        return _recode(encoded, encoded.logical, logical)
    if type(encoded.logical) is not type(logical) or (
        isinstance(logical, Timestamp)
        and isinstance(encoded.logical, Timestamp)
        and logical.timezone != encoded.logical.timezone
    ):
        raise FieldMismatch(
            f"must hold {logical} as in sequence 0, but holds {encoded.logical}. Convert it"
        )
    return _change_unit(encoded, logical)


def _recode(encoded: EncodedValues, theirs: Categories, ours: Categories) -> NDArray[np.int32]:
    codes = [ours.codes.get(value, -1) for value in theirs.values]
    found: NDArray[np.int32] = np.array(codes, dtype=np.int32)[encoded.values]
    if (found < 0).any():
        unknown = theirs.values[int(encoded.values[found < 0][0])]
        raise FieldMismatch(
            f"must hold strings of the vocabulary ({describe_codes(ours.values)}), but holds "
            f"{unknown!r}, which is not in it. Give all sequences in a list or a table, whose "
            "vocabulary is counted first"
        )
    return found


def _change_unit(encoded: EncodedValues, logical: LogicalType) -> NDArray[np.int64]:
    ours, theirs = _count_unit(logical), _count_unit(encoded.logical)
    factor = max(1, ours // theirs)
    scaled = encoded.values * factor
    divisor = max(1, theirs // ours)
    if (scaled // factor != encoded.values).any() or (scaled % divisor).any():
        raise FieldMismatch(
            f"holds {encoded.logical} that {logical}, of sequence 0, cannot represent exactly. "
            "Convert them to one unit"
        )
    return scaled // divisor


def _count_unit(logical: LogicalType) -> int:
    """Return how often a unit fits into a day."""
    unit = getattr(logical, "unit", "D")
    return 1 if unit == "D" else _SECONDS_PER_DAY * _PER_SECOND[unit]


def share_vocabularies(rows: Iterator[Any], items: Any) -> Iterator[Any]:
    """Return sequences whose strings per timestep have one vocabulary, in order of appearance.

    Args:
        rows: An iterator of the sequences; its first one shows which fields hold strings.
        items: The same sequences, to be iterated before; an iterator can be read once only.

    Raises:
        ConfigError: If strings come from an iterator.
    """
    first = next(rows)
    names = [name for name, value in first.items() if _are_strings(value)]
    if names and items is None:
        raise ConfigError(
            f"`sequences`: field {names[0]!r} holds a string per timestep, whose vocabulary must "
            "be counted first, but comes from an iterator, which can be read once only. Pass a "
            "list or a table, or encode the strings as numbers"
        )
    vocabularies = {name: Categories(_count_strings(items, name)) for name in names}
    yield _share(first, vocabularies)
    for row in rows:
        yield _share(row, vocabularies)


def _are_strings(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "U" or (value.dtype.kind == "O" and _are_strings(value.tolist()))
    if isinstance(value, list | tuple):
        return bool(len(value)) and isinstance(value[0], str)
    encoded = (
        encode_values(value)
        if type(value).__module__.startswith(("pandas", "pola", "pyar"))
        else None
    )
    return encoded is not None and isinstance(encoded.logical, Categories)


def _count_strings(items: Iterable[Mapping[str, Any]], name: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for item in items:
        value = item.get(name) if isinstance(item, Mapping) else None
        if isinstance(value, list | tuple):
            found.update(dict.fromkeys(each for each in value if isinstance(each, str)))
        elif value is not None and (encoded := encode_values(value)) is not None:
            found.update(dict.fromkeys(getattr(encoded.logical, "values", ())))
    return tuple(found)


def _share(row: Any, vocabularies: Mapping[str, Categories]) -> Any:
    if not vocabularies or not isinstance(row, Mapping):
        return row
    shared = dict(row)
    for name, categories in vocabularies.items():
        encoded = encode_values(row[name]) if name in row else None
        if encoded is not None and isinstance(encoded.logical, Categories):
            shared[name] = EncodedValues(convert_values(encoded, categories), categories)
    return shared
