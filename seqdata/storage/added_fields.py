"""A store with fields that were added to it: the result of ``store.with_fields``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_axis_starts, get_base_keys, get_linked_axes
from seqdata.errors import ConfigError, UnknownNameError, must_be
from seqdata.linked_axes import Axis
from seqdata.protocols import Field, Store, SupportsObserver, SupportsPrefetch
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation, ShardLayout, narrow_lengths
from seqdata.storage.fields import ID_FIELD, default_axis, make_packer
from seqdata.storage.ids import name_sequences
from seqdata.storage.inputs import normalize_sequences
from seqdata.storage.packing import pack_sequence
from seqdata.storage.schema import PackedFields, check_axis_lengths, check_axis_names, infer_field
from seqdata.storage.views import (
    SequenceStore,
    View,
    format_title,
    get_measured_transform,
    locate_sequence,
)

_LABEL = "added"


class AddedFields(SequenceStore):
    """The sequences of a base store with further fields, which are in memory.

    Args:
        base: Any store.
        added: Name -> field, of the added ones.
        packed: Name -> (values, offsets or None) of all sequences.
        lengths_of: Axis -> number of timesteps of each sequence, for axes that the base lacks.
    """

    def __init__(
        self,
        base: Store,
        added: Mapping[str, Field],
        packed: PackedFields,
        lengths_of: Mapping[str, NDArray[Any]],
    ) -> None:
        self._base = base
        self._added = dict(added)
        self._packed = dict(packed)
        self._own_lengths = dict(lengths_of)
        self._lengths_of = {**base.lengths_of, **self._own_lengths}
        layout = ShardLayout(_LABEL, (_LABEL,), [0, len(base)], self._lengths_of)
        self._sources = {
            name: BufferSource.from_arrays(
                name, field, layout, [packed[name][0]], _list_offsets(packed[name][1])
            )
            for name, field in self._added.items()
        }
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return AddedFields, (self._base, self._added, self._packed, self._own_lengths)

    def __len__(self) -> int:
        return len(self._base)

    @property
    def title(self) -> str:
        """One line that names the base and the added fields."""
        return f"{format_title(self._base)} with {', '.join(self._added)}"

    @property
    def base(self) -> Store:
        """The store to which fields were added."""
        return self._base

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field: those of the base, then the added ones."""
        return {**self._base.fields, **self._added}

    @property
    def lengths(self) -> NDArray[Any]:
        """Number of timesteps of each sequence, integers (sequences,)."""
        return self._base.lengths

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> number of timesteps of each sequence, integers (sequences,)."""
        return self._lengths_of

    @property
    def linked_axes(self) -> Mapping[str, Axis]:
        """Axis -> its clock, of the base."""
        return get_linked_axes(self._base)

    def axis_starts(self, axis: str) -> NDArray[np.int64] | None:
        """Return the first timestep of each sequence in its recording; None: all begin at 0."""
        return get_axis_starts(self._base, axis)

    @property
    def shards(self) -> Sequence[str]:
        """Names of the base's storage files."""
        return self._base.shards

    @property
    def fingerprint(self) -> str:
        """Digest of the base and of the added values (32 hex digits)."""
        if self._fingerprint is None:
            text = f"added:{self._base.fingerprint}:{self._added!r}"
            digest = hashlib.sha256(text.encode())
            for name in self._added:
                values, offsets = self._packed[name]
                digest.update(np.ascontiguousarray(values).view(np.uint8).data)
                if offsets is not None:
                    digest.update(np.ascontiguousarray(offsets, dtype="<i8").data)
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of sequences by index, or of a batch's rows."""
        return name_sequences(
            numbers, lambda own: get_base_keys(self._base, self._base.base_numbers(own))
        )

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store selects no sequences."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of a sequence in its own store, for an error."""
        if not 0 <= number < len(self):
            return DataLocation(dataset=self.title)
        numbers = np.array([number], dtype=np.int64)
        return locate_sequence(self._base, int(self._base.base_numbers(numbers)[0]))

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        spans, names = np.ascontiguousarray(spans, dtype=np.int64), list(fields)
        of_base = [name for name in names if name not in self._added]
        is_own = axis not in self._base.lengths_of and axis in self._own_lengths
        if is_own:  # the base is read whole
            base_axis = default_axis(self._base.lengths_of)
            found = self._base.read(self._make_full(spans, base_axis), of_base, axis=base_axis)
        else:  # which also checks the spans
            found = self._base.read(spans, of_base, axis=axis)
        for name in names:
            if name in self._added:
                own_axis = self._added[name].axis
                own_spans = spans if own_axis == axis else self._make_full(spans, own_axis)
                found[name] = self._sources[name].column(own_spans)
        return {name: found[name] for name in names}

    def _make_full(self, spans: NDArray[np.int64], axis: str | None) -> NDArray[np.int64]:
        """Return the spans of whole sequences along another axis."""
        full = np.zeros_like(spans)
        full[:, 0], full[:, 2] = spans[:, 0], 1
        if axis is not None:
            full[:, 2] = self._lengths_of[axis].take(spans[:, 0], mode="clip")
        return full

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Announce sequences to the base, if it prefetches; return whether it accepts more."""
        base = self._base.base if isinstance(self._base, View) else self._base
        found = self._base.base_numbers(numbers)
        return not isinstance(base, SupportsPrefetch) or base.prefetch(found)

    def observe(self, on_sequence: Callable[[int], None]) -> Store:
        """Return the same store over a base that reports the sequences it reads, if it can."""
        if not isinstance(self._base, SupportsObserver):
            return self
        observed = self._base.observe(on_sequence)
        return AddedFields(observed, self._added, self._packed, self._own_lengths)


def add_fields(
    store: SequenceStore, fields: Mapping[str, Any], axes: Mapping[str, str | None] | None
) -> AddedFields:
    """Return a store with added fields; see ``SequenceStore.with_fields``."""
    if not isinstance(fields, Mapping) or not fields:
        needed = "a dict of field and values"
        raise ConfigError(must_be("with_fields: `fields`", needed, f"{fields!r:.100}"))
    if get_measured_transform(store) is not None:
        raise ConfigError(
            "with_fields: the view must not have a transform, since fields are added to stored "
            "data, but has one. Add fields first, and call `measure_lengths` on the result"
        )
    if not len(store):
        raise ConfigError(
            "with_fields: the store must have at least one sequence, but is empty. Check how it "
            "was selected"
        )
    for name in fields:
        if name in store.fields:
            raise ConfigError(
                f"with_fields: field {name!r} must have a new name, but the store has a field of "
                "this name. Rename it, or choose the others with `select`"
            )
        if name == ID_FIELD:
            raise ConfigError(
                f"with_fields: field {name!r} must have another name, since the ids of sequences "
                "are shown by it. Rename it"
            )
    check_axis_names(fields, axes or {})
    wanted: dict[str, str | None] = {}
    columns: dict[str, Any] = {}
    for name, values in fields.items():
        columns[name] = _order_values(store, name, values)
        if isinstance(values, np.ndarray) and values.dtype != object and values.ndim > 1:
            wanted[name] = None  # one value per sequence
        elif _is_ragged(columns[name]):
            wanted[name] = default_axis(store.lengths_of)
    wanted |= dict(axes or {})
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    added, packed = _pack(rows, wanted)
    found = check_axis_lengths(added, packed, 0, ID_FIELD)
    for axis, lengths in found.items():
        if axis in store.lengths_of:
            _check_lengths(store, added, axis, lengths)
    new = {
        axis: narrow_lengths(lengths)
        for axis, lengths in found.items()
        if axis not in store.lengths_of
    }
    return AddedFields(store, added, packed, new)


def _list_offsets(offsets: NDArray[np.int64] | None) -> list[NDArray[np.int64]] | None:
    return None if offsets is None else [offsets]


def _is_ragged(values: Any) -> bool:
    first = values[0]
    return not isinstance(first, str | bytes) and np.ndim(first) > 0


def _order_values(store: SequenceStore, name: str, values: Any) -> Any:
    """Return values in the order of the store, one for each sequence."""
    if isinstance(values, Mapping):
        found = []
        for key in store.ids:
            if key not in values:
                raise UnknownNameError(
                    f"with_fields: field {name!r} must have a value for every id, but has none for "
                    f"{key!r}. Add it, or select the sequences that have one"
                )
            found.append(values[key])
        return found
    count = len(values) if hasattr(values, "__len__") and not isinstance(values, str) else None
    if count != len(store):
        kind = type(values).__name__
        found_text = f"is of type {kind}" if count is None else f"has {count} values"
        raise ConfigError(
            f"with_fields: field {name!r} must have a value for each of the {len(store)} "
            f"sequences, but {found_text}. Pass them in the order of the store, or as a dict "
            "id -> value"
        )
    return values if isinstance(values, np.ndarray | list | tuple) else list(values)


def _pack(
    rows: list[dict[str, Any]], axes: Mapping[str, str | None]
) -> tuple[dict[str, Field], PackedFields]:
    """Return the fields of rows, and their packed values."""
    normalized, own_axes = normalize_sequences(rows, axes)
    added: dict[str, Field] = {}
    packers: dict[str, Any] = {}
    for number, row in enumerate(normalized):
        if not packers:
            added = {name: infer_field(name, row[name], own_axes or {}) for name in row}
            packers = {name: make_packer(field) for name, field in added.items()}
        pack_sequence(packers, row, number, ID_FIELD)
    return added, {name: packer.take() for name, packer in packers.items()}


def _check_lengths(
    store: SequenceStore, added: Mapping[str, Field], axis: str, lengths: NDArray[np.int64]
) -> None:
    """Raise ConfigError if added fields do not have the timesteps of an axis of the store."""
    stored = np.asarray(store.lengths_of[axis])
    differing = np.flatnonzero(lengths != stored)
    if not len(differing):
        return
    at = int(differing[0])
    name = next(name for name, field in added.items() if field.axis == axis)
    raise ConfigError(
        f"with_fields: field {name!r} of sequence {store.ids[at]!r} must have {stored[at]} "
        f"timesteps along {axis!r}, as the store has, but has {lengths[at]}. Check the order of "
        f"the values; for another length, pass axes={{{name!r}: 'another_axis'}}; for one vector "
        f"per sequence, axes={{{name!r}: None}}"
    )
