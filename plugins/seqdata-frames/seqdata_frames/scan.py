"""One pass over the columns that group and order rows, and over those that may be constant.

Units are read one after the other; a column of numbers is no longer read once it has changed within
a group. The result has the groups, whether rows are in order, and a value per group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends.files import RowTables
from seqdata.errors import DecodeError
from seqdata_frames.steps import RowSteps, parse_frequency

if TYPE_CHECKING:
    import pyarrow as pa

AUTO = "auto"
_LONG_RUN = 8  # mean rows per run of equal values, from which on runs are encoded, not rows
_SHORT_ROWS = 1_000_000  # that are checked at once, as the core does


class Codes:
    """Integer codes of distinct values, in order of appearance."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def encode(self, column: pa.Array) -> NDArray[np.int32]:
        """Return the code of each value of a column, int32 (rows,); new values get new codes."""
        from pyarrow import types

        encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
        indices = RowTables.convert("codes", encoded.indices, 0, "error")
        found = encoded.dictionary.to_pylist()
        first = np.full(len(found), len(indices))
        changes = find_changes(indices)
        first[indices[changes[::-1]]] = changes[::-1]  # the first of several is written last
        numbers = np.zeros(len(found), dtype=np.int32)
        for at in np.argsort(first, kind="stable")[: int((first < len(indices)).sum())].tolist():
            numbers[at] = self._add(found[at])
        if len(changes) * _LONG_RUN > len(indices):
            codes: NDArray[np.int32] = numbers.take(indices)
            return codes
        return np.repeat(numbers[indices[changes]], np.diff(changes, append=len(indices)))

    def _add(self, value: Any) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Groups:
    """The groups of the rows of a table, collected in its order.

    Attributes:
        codes: The codes of groups.
        counts: int64 (groups,), number of rows of each group.
        are_together: Whether the rows of each group are contiguous so far.
    """

    def __init__(self) -> None:
        self.codes = Codes()
        self.counts = np.zeros(0, dtype=np.int64)
        self.are_together = True
        self._last = -1

    @property
    def names(self) -> list[Any]:
        """The value of each group."""
        return self.codes.values

    def add(self, column: pa.Array) -> NDArray[np.int32]:
        """Add rows, and return the code of the group of each, int32 (rows,)."""
        known = len(self.names)
        codes = self.codes.encode(column)
        starts = find_changes(codes)
        runs = codes[starts]
        self.counts = np.concatenate((self.counts, np.zeros(len(self.names) - known, np.int64)))
        lengths = np.diff(starts, append=len(codes))
        self.counts += np.bincount(runs, lengths, len(self.names)).astype(np.int64)
        new = runs[1:] if len(runs) and runs[0] == self._last else runs
        self.are_together &= bool((new >= known).all() and len(np.unique(new)) == len(new))
        self._last = int(codes[-1]) if len(codes) else self._last
        return codes


def find_changes(*columns: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows, int64, with a value that differs from the row before, and the first row."""
    changes = np.ones(len(columns[0]), dtype=bool)
    changes[1:] = False
    for values in columns:
        changes[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(changes)


class Constant:
    """A column that may have one value in each group.

    Args:
        name: The column.
        convert: ``convert(column, first_row)`` returns numbers, (rows,); None: strings or bytes.

    Attributes:
        name: The column.
        texts: Codes of its strings or bytes; None: numbers.
        has_changed: Whether it has had two values in a group.
        change: The first two different values in a group; None: there are none.
    """

    def __init__(self, name: str, convert: Callable[[Any, int], NDArray[Any]] | None) -> None:
        self.name = name
        self._convert = convert
        self.texts = None if convert is not None else Codes()
        self.has_changed = False
        self.change: tuple[Any, Any] | None = None
        self._values: NDArray[Any] = np.zeros(0, dtype=np.int64)
        self._known = np.zeros(0, dtype=bool)

    def add(self, codes: NDArray[np.int32], column: pa.Array, first_row: int) -> int | None:
        """Add rows; return the first row that differs from its group; None if none does.

        Once strings have changed, they are only encoded.

        Args:
            codes: int32 (rows,), the group of each row.
            column: Values of the rows.
            first_row: Index of the first of these rows in the table, for messages.

        Raises:
            DecodeError: If a value is missing or cannot be converted.
        """
        if self.texts is not None:
            RowTables.refuse_missing(self.name, column, first_row)
            values: NDArray[Any] = self.texts.encode(column)
        elif self._convert is not None:
            values = self._convert(column, first_row)
        if self.has_changed:
            return None
        rows = find_changes(codes, values)  # others are as the row before
        codes, values = codes[rows], values[rows]
        groups = int(codes.max()) + 1 - len(self._known)
        if groups > 0:
            self._known = np.concatenate((self._known, np.zeros(groups, bool)))
            more = np.zeros(groups, values.dtype)
            self._values = np.concatenate((self._values.astype(values.dtype, copy=False), more))
        new = np.flatnonzero(~self._known[codes])[::-1]  # the first of several is written last
        self._values[codes[new]] = values[new]
        self._known[codes[new]] = True
        different = values != self._values[codes]
        self.has_changed = bool(different.any())
        if not self.has_changed:
            return None
        at = int(np.argmax(different))
        self.change = self._show(self._values[codes[at]]), self._show(values[at])
        return int(rows[at])

    def _show(self, value: Any) -> Any:
        return value if self.texts is None else self.texts.values[value]

    @property
    def values(self) -> NDArray[Any] | list[Any]:
        """The value of each group: numbers, strings or bytes."""
        if self.texts is None:
            return self._values
        return [self.texts.values[number] for number in self._values.tolist()]

    @property
    def differs(self) -> bool:
        """Whether two groups have different values."""
        return bool((self._values != self._values[:1]).any())


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The result of one pass over a table.

    Attributes:
        names: The value of each group, in order of appearance.
        counts: int64 (groups,), number of rows of each group.
        is_in_place: Whether rows can be read without sorting: each group is contiguous and in
            order.
        steps: The steps of the order column, in the order of the table; None without one.
        constants: Column of strings or numbers that is constant in each group -> its values.
        changing: Column of strings or bytes that change within a group -> its vocabulary, in the
            order of the table.
    """

    names: list[Any]
    counts: NDArray[np.int64]
    is_in_place: bool
    steps: RowSteps | None
    constants: dict[str, NDArray[Any] | list[Any]]
    changing: dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Columns and options of one pass over a table; see ``scan_table``.

    Attributes:
        group: The column whose equal values make a sequence.
        order: The column by which rows are sorted; None: they are in order.
        texts: Columns of strings and bytes.
        numbers: Columns of numbers that are checked; constant ones become values per sequence.
        static: Columns of any type that must be constant in each group.
        freq: The step of a regular grid; None: no grid.
        missing: The rule for missing values.
    """

    group: str
    order: str | None
    texts: Sequence[str]
    numbers: Sequence[str]
    static: Sequence[str]
    freq: str | int | None
    missing: Any


def scan_table(
    tables: RowTables, wanted: Wanted, on_progress: Callable[[int], None] | None = None
) -> Scan:
    """Read a table once, and return its groups, their order, and their constant columns.

    Args:
        tables: The table.
        wanted: The columns to read, and the options.
        on_progress: Called with the number of rows read so far.

    Raises:
        ConfigError: If ``freq`` does not match the column, or values of its type have no order.
        DecodeError: If a value is missing, or a static column changes within a group; or, without
            ``order``, if the rows of a group are not contiguous or dates decrease.
    """
    groups, steps = Groups(), None
    if wanted.order is not None:
        steps = make_steps(tables, wanted.order, wanted.freq)
    constants = _make_constants(tables, wanted)
    is_short = tables.unit_rows.sum() < _SHORT_ROWS
    first_row = 0
    fixed = (wanted.group,) if wanted.order is None else (wanted.group, wanted.order)

    def read(unit: int) -> pa.Table:
        names = dict.fromkeys((*fixed, *constants))
        return tables.read(unit, list(names), [wanted.group, *wanted.texts])

    for unit, table in read_ahead(read, np.flatnonzero(tables.unit_rows).tolist()):
        column = encoded_column(tables, table, wanted.group)
        tables.refuse_missing(wanted.group, column, first_row)
        codes = groups.add(column)
        if steps is not None and wanted.order is not None:
            keys = order_keys(tables, steps, tables.column(table, wanted.order), first_row)
            steps.add(codes, keys)
        for name in list(constants):
            row = constants[name].add(codes, encoded_column(tables, table, name), first_row)
            if row is None:
                continue
            if name in wanted.static:
                raise _make_change_error(constants[name], groups.names, int(codes[row]))
            if name not in wanted.texts:
                del constants[name]
        if wanted.order is None and not is_short:
            _refuse_disorder(tables, wanted.group, unit, groups)
        first_row += len(table)
        if on_progress is not None:
            on_progress(first_row)
    if wanted.order is None and is_short and first_row:
        dates = [name for name in tables.schema.names if _may_be_dates(tables, name)]
        names = list(dict.fromkeys((wanted.group, *dates)))
        tables.refuse_order(_join(tables, names, range(len(tables.unit_rows))), wanted.group)
    return _make_scan(wanted, groups, steps, constants)


def look_up(column: pa.Array, numbers: Mapping[Any, int]) -> NDArray[np.int32]:
    """Return the codes of the values of a column, int32 (rows,); -1 for unknown values."""
    from pyarrow import types

    encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    found = [numbers.get(value, -1) for value in encoded.dictionary.to_pylist()]
    indices = RowTables.convert("codes", encoded.indices, 0, "error")
    codes: NDArray[np.int32] = np.array(found, dtype=np.int32)[indices]
    return codes


def read_ahead(read: Callable[[int], Any], units: Iterable[int]) -> Iterator[tuple[int, Any]]:
    """Yield each unit with its result of ``read``, while a thread reads the next one."""
    with ThreadPoolExecutor(1, "frames") as pool:
        waiting: deque[tuple[int, Future[Any]]] = deque()
        for unit in units:
            waiting.append((unit, pool.submit(read, unit)))
            if len(waiting) > 1:
                done, future = waiting.popleft()
                yield done, future.result()  # ends: it reads one unit
        for done, future in waiting:
            yield done, future.result()  # ends: it reads one unit


def encoded_column(tables: RowTables, table: pa.Table, name: str) -> pa.Array:
    """Return a column as one Arrow array; strings that were read as dictionary codes stay so."""
    from pyarrow import types

    column = table.column(name)
    was_encoded = table.schema.field(name).type != tables.schema.field(name).type
    is_codes = was_encoded and types.is_dictionary(column.type) and column.num_chunks == 1
    return column.chunk(0) if is_codes else tables.column(table, name)


def _make_scan(
    wanted: Wanted,
    groups: Groups,
    steps: RowSteps | None,
    constants: dict[str, Constant],
) -> Scan:
    kept = {
        name: constant
        for name, constant in constants.items()
        if not constant.has_changed
        if name in wanted.texts or name in wanted.static or constant.differs
    }
    is_in_place = groups.are_together and (steps is None or not steps.decreases)
    values = {name: constant.values for name, constant in kept.items()}
    changing = {
        name: each.texts.values
        for name, each in constants.items()
        if each.has_changed and each.texts is not None
    }
    return Scan(groups.names, groups.counts, is_in_place, steps, values, changing)


def make_steps(tables: RowTables, order: str, freq: str | int | None) -> RowSteps:
    """Return an empty ``RowSteps`` for a column.

    Raises:
        ConfigError: If ``freq`` is given, but does not match the type of the column.
    """
    from pyarrow import types

    type_ = tables.schema.field(order).type
    unit = None
    if types.is_timestamp(type_):
        unit = type_.unit
    elif types.is_date(type_):
        unit = "D" if types.is_date32(type_) else "ms"
    elif not types.is_integer(type_) and not types.is_floating(type_):
        unit = "us"  # strings that are dates
    step = None if freq is None else parse_frequency(freq, unit, order)
    return RowSteps(type_, order, step)


def order_keys(tables: RowTables, steps: RowSteps, column: Any, first_row: int) -> NDArray[Any]:
    """Return the sort keys of some rows, (rows,); for a grid, int64.

    Raises:
        DecodeError: If a key of a grid is not an integer.
    """
    keys = tables.order_keys(steps.order, column, first_row)
    if steps.step is None:
        return keys
    integers = keys.astype(np.int64, copy=False)
    if keys.dtype.kind == "f" and (integers != keys).any():
        row = int(np.argmax(integers != keys))
        raise DecodeError.at(
            f"table: column {steps.order!r} must hold dates or integers with `freq`, but row "
            f"{first_row + row} holds {keys[row]}. Leave `freq` out, or convert the column"
        )
    return integers


def _make_constants(tables: RowTables, wanted: Wanted) -> dict[str, Constant]:
    def make_converter(name: str) -> Callable[[Any, int], NDArray[Any]]:
        return lambda column, row: np.asarray(tables.convert(name, column, row, wanted.missing))

    texts = {name: Constant(name, None) for name in wanted.texts}
    return texts | {name: Constant(name, make_converter(name)) for name in wanted.numbers}


def _refuse_disorder(tables: RowTables, group: str, unit: int, groups: Groups) -> None:
    """Raise a DecodeError if no order is given and rows are not in order, as the core does."""
    if not groups.are_together:
        tables.refuse_order(_join(tables, [group], range(unit + 1)), group)
    dates = [name for name in tables.schema.names if name != group and _may_be_dates(tables, name)]
    for name in dates:
        try:
            latest = range(max(0, unit - 1), unit + 1)
            tables.refuse_order(_join(tables, [group, name], latest), group)
        except DecodeError:  # once more from the first row on, whose number the message tells
            tables.refuse_order(_join(tables, [group, name], range(unit + 1)), group)
            raise


def _may_be_dates(tables: RowTables, name: str) -> bool:
    from pyarrow import types

    type_ = tables.schema.field(name).type
    type_ = type_.value_type if types.is_dictionary(type_) else type_
    is_text = types.is_string(type_) or types.is_large_string(type_)
    return bool(is_text or types.is_timestamp(type_) or types.is_date(type_))


def _join(tables: RowTables, names: Sequence[str], units: Iterable[int]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([tables.read(unit, names) for unit in units])


def _make_change_error(constant: Constant, names: list[Any], code: int) -> DecodeError:
    """Return the error about a column that is not constant in a group."""
    old, new = constant.change or (None, None)
    return DecodeError.at(
        f"table: column {constant.name!r} must have one value per sequence, but in the rows of "
        f"{names[code]!r} it has {old} and {new}. Leave it out of `static` and `axes`, so that it "
        "has a value per timestep",
        field=constant.name, sequence=code,
    )  # fmt: skip
