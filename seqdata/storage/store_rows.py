"""The sequences of a store as dicts: to inspect them, to select by them and to write them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, warn
from seqdata.protocols import Store
from seqdata.storage.fields import (
    ID_FIELD,
    default_axis,
    field_width,
    find_key,
    kind_of,
    make_unknown_name_error,
)
from seqdata.storage.logical_values import EncodedValues

Predicate = Callable[[Mapping[str, Any]], bool]
"""``predicate(sequence) -> bool``, where a sequence is a mapping of its fields."""

_MAX_SEQUENCES = 64  # maximum sequences that are read at once
_MAX_BYTES = 32 << 20  # of them, unless a single one has more
_MAX_LISTED = 12  # numbers of an array that a representation lists
_MAX_CHARACTERS = 80  # of a string or bytes in a representation


class SequenceRange:
    """Neighbouring sequences of a store; a field is read for all of them at first use.

    Args:
        store: Any store.
        first: The first sequence.
        stop: One past the last.
    """

    __slots__ = ("_columns", "_ids", "first", "stop", "store")

    def __init__(self, store: Store, first: int, stop: int) -> None:
        self.store = store
        self.first = first
        self.stop = stop
        self._columns: dict[str, Any] = {}
        self._ids: list[str] | None = None

    @property
    def ids(self) -> list[str]:
        """The id of each sequence."""
        if self._ids is None:
            numbers = np.arange(self.first, self.stop, dtype=np.int64)
            self._ids = get_base_keys(self.store, self.store.base_numbers(numbers))
        return self._ids

    def read(self, names: list[str]) -> None:
        """Read fields that were not read yet."""
        names = [name for name in names if name not in self._columns]
        if not names:
            return
        lengths_of = self.store.lengths_of
        axis = default_axis(lengths_of)
        spans = np.zeros((self.stop - self.first, 3), dtype=np.int64)
        spans[:, 0] = np.arange(self.first, self.stop)
        spans[:, 2] = lengths_of[axis][self.first : self.stop]
        self._columns.update(self.store.read(spans, names, axis=axis))

    def value(self, name: str, at: int) -> Any:
        """Return the value of a field for one sequence: an array, a number, ``str`` or ``bytes``.

        Dates and durations are datetime64 and timedelta64, strings per timestep are ``str_``.

        Args:
            name: Name of the field.
            at: Index of the sequence in the range.
        """
        value = self.stored_value(name, at)
        return value.logical.decode(value.values)[()] if type(value) is EncodedValues else value

    def stored_value(self, name: str, at: int) -> Any:
        """Return the value of a field for one sequence as a writer takes it; see ``value``."""
        self.read([name])
        value, field = self._columns[name][at], self.store.fields[name]
        if field.axis is None and kind_of(field).is_array:
            value = value[0]
        return value if field.logical is None else EncodedValues(np.asarray(value), field.logical)


class LazySequence(Mapping[str, Any]):
    """One sequence as a mapping; a field is read at first use, for all of its range.

    Args:
        sequence_range: The range of the sequence.
        at: Its index in the range.
    """

    __slots__ = ("_at", "_range")

    def __init__(self, sequence_range: SequenceRange, at: int) -> None:
        self._range = sequence_range
        self._at = at

    def __getitem__(self, name: str) -> Any:
        fields = self._range.store.fields
        if name in fields:
            return self._range.value(name, self._at)
        if name == ID_FIELD:
            return self._range.ids[self._at]
        raise make_unknown_name_error("sequence", "field", name, fields)

    def __contains__(self, name: object) -> bool:
        return name in self._range.store.fields or name == ID_FIELD

    def __iter__(self) -> Iterator[str]:
        fields = self._range.store.fields
        return iter(fields if ID_FIELD in fields else (ID_FIELD, *fields))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"sequence {self._range.first + self._at} of {', '.join(self)}"


def iter_sequences(store: Store) -> Iterator[LazySequence]:
    """Return the sequences of a store, in its order, as mappings that read at first use."""
    for first, stop in _iter_ranges(store):
        run = SequenceRange(store, first, stop)
        for at in range(stop - first):
            yield LazySequence(run, at)


def iter_dicts(store: Store) -> Iterator[dict[str, Any]]:
    """Return the sequences of a store as dicts, in its order; arrays are copies."""
    for first, stop in _iter_ranges(store):
        run = SequenceRange(store, first, stop)
        run.read(list(store.fields))
        for at in range(stop - first):
            yield _copy_values(LazySequence(run, at))


def read_dict(store: Store, number: int) -> dict[str, Any]:
    """Return one existing sequence as a dict; arrays are copies."""
    run = SequenceRange(store, number, number + 1)
    run.read(list(store.fields))
    return _copy_values(LazySequence(run, 0))


class SequenceDict(dict[str, Any]):
    """One sequence as a dict, whose representation does not list every number."""

    __slots__ = ()

    def __repr__(self) -> str:
        items = (f"{name!r}: {_shorten_value(value)}" for name, value in self.items())
        return f"{{{', '.join(items)}}}"


def _shorten_value(value: Any) -> str:
    """Return the representation of a value; of a long one its dtype, shape and range."""
    if isinstance(value, np.ndarray) and value.size > _MAX_LISTED:
        known = value[~np.isnan(value)] if value.dtype.kind == "f" else value
        has_range = known.dtype.kind in "iuf" and known.size > 0
        bounds = f", {known.min():g} to {known.max():g}" if has_range else ""
        return f"<{value.dtype} {value.shape}{bounds}>"
    text = repr(value)
    if isinstance(value, str | bytes) and len(value) > _MAX_CHARACTERS:
        return f"<{type(value).__name__} of {len(value):,}: {value[:_MAX_CHARACTERS]!r}...>"
    return text


def _copy_values(row: LazySequence) -> SequenceDict:
    return SequenceDict(
        (name, value.copy() if isinstance(value, np.ndarray) else value)
        for name, value in row.items()
    )


def iter_answers(store: Store, predicate: Predicate) -> Iterator[bool]:
    """Return the result of a predicate for each sequence.

    Raises:
        ConfigError: If a result is not a bool.
    """
    for number, row in enumerate(iter_sequences(store)):
        try:
            answer: Any = predicate(row)
        except Exception as error:
            error.add_note(f"in the function given to `where`, for sequence {number}")
            raise
        if not isinstance(answer, bool | np.bool_):
            answer_text = (
                f"an array of shape {answer.shape}" if isinstance(answer, np.ndarray) else answer
            )
            raise ConfigError(
                f"where: the function must return True or False, but returned {answer_text} for "
                f"sequence {number}. Return one bool per sequence; for an array, use .any() or "
                ".all()"
            )
        yield bool(answer)


def has_ids(store: Store) -> bool:
    """Return whether ids are more than indices, judged by the first and the last ones."""
    sample = np.unique(np.r_[0:_MAX_SEQUENCES, len(store) - _MAX_SEQUENCES : len(store)])
    sample = store.base_numbers(sample[(sample >= 0) & (sample < len(store))])
    return get_base_keys(store, sample) != [str(number) for number in sample.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class StoreSequences:
    """The sequences of a store, in its order, for writing; can be iterated repeatedly.

    Attributes:
        store: Any store.
        key: The field name for ids, if the store has no such field and its ids are not just
            numbers; empty: ``id``.
    """

    store: Store
    key: str

    @property
    def axes(self) -> dict[str, str | None]:
        """Field -> axis, of all fields of numbers except single numbers."""
        fields = self.store.fields.items()
        return {name: field.axis for name, field in fields if field.axis is not None or field.shape}

    def __len__(self) -> int:
        return len(self.store)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.iter_view(self.store)

    def iter_view(self, view: Store) -> Iterator[dict[str, Any]]:
        """Yield the sequences of a view of the store, with fields and ids as in the whole store."""
        store, name = self.store, self.key or ID_FIELD
        named = has_ids(store)
        if named and name in store.fields:
            named = False
            _warn_if_lost(name, store)
        for first, stop in _iter_ranges(view):
            run = SequenceRange(view, first, stop)
            run.read(list(store.fields))
            for at in range(stop - first):
                row = {name: run.ids[at]} if named else {}
                yield row | {name: run.stored_value(name, at) for name in store.fields}


def _warn_if_lost(name: str, store: Store) -> None:
    """Warn that ids are dropped if the field of their name holds something else."""
    if find_key(store.fields, name) is None:
        warn(
            f"store: ids are dropped: field {name!r} does not hold strings; rename it with "
            "`rename`, or pass the field of ids as `key`",
        )


def _iter_ranges(store: Store) -> Iterator[tuple[int, int]]:
    """Yield ranges of sequences to read at once: the first, and one past the last."""
    sizes = _compute_sizes(store)
    first = 0
    while first < len(store):
        size = np.cumsum(sizes[first : first + _MAX_SEQUENCES])
        stop = first + max(1, int(np.searchsorted(size, _MAX_BYTES, side="right")))
        yield first, stop
        first = stop


def _compute_sizes(store: Store) -> NDArray[np.int64]:
    """Return the bytes of each sequence along its axes, int64 (sequences,)."""
    sizes = np.zeros(len(store), dtype=np.int64)
    for field in store.fields.values():
        if field.axis is not None:
            lengths = store.lengths_of[field.axis].astype(np.int64)
            sizes += field_width(field) * lengths
    return sizes
