"""Sequences of a store cut to spans of their timesteps: the result of a split in time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_axis_starts, get_base_keys, get_linked_axes
from seqdata.errors import ConfigError
from seqdata.linked_axes import Axis, are_linked
from seqdata.protocols import Field, Store, SupportsObserver, SupportsPrefetch
from seqdata.storage.added_fields import AddedFields
from seqdata.storage.concat import ConcatStore
from seqdata.storage.data_location import DataLocation, narrow_lengths
from seqdata.storage.fields import list_axes, make_unknown_name_error
from seqdata.storage.ids import name_sequences
from seqdata.storage.linking import AxisLinker
from seqdata.storage.selection import find_outside
from seqdata.storage.views import SequenceStore, View, format_title, locate_sequence


class SpanStore(SequenceStore):
    """Sequences of a base store, each cut to a span of its timesteps. Made by ``split``.

    A sequence keeps its id. Nothing outside its span can be read. Linked axes are cut at the same
    times, each at its nearest timestep, so that parts that adjoin along one adjoin along all.

    Args:
        base: A store whose ragged fields all run along one axis, or along axes linked to it.
        axis: That axis.
        sequences: int64 (n,), the index of each sequence in ``base``.
        starts: int64 (n,), its first timestep there.
        stops: int64 (n,), one past its last.
        contexts: int64 (n,), timesteps at its start that are context: inputs, never targets.
    """

    def __init__(
        self,
        base: Store,
        axis: str,
        sequences: NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        contexts: NDArray[np.int64],
    ) -> None:
        self._base = base
        self._axis = axis
        self._sequences = sequences
        self._starts = starts
        self._stops = stops
        self.contexts = contexts
        self._lengths = narrow_lengths(stops - starts)
        self._bounds_of: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None
        self._lengths_of: dict[str, NDArray[Any]] | None = None
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SpanStore, (
            self._base, self._axis, self._sequences, self._starts, self._stops, self.contexts
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def title(self) -> str:
        """One line that names the store and its base."""
        return f"Spans({len(self)} along {self._axis!r} of {format_title(self._base)})"

    @property
    def base(self) -> Store:
        """The store whose sequences are cut."""
        return self._base

    @property
    def axis(self) -> str:
        """The axis that is cut."""
        return self._axis

    @property
    def spans(self) -> NDArray[np.int64]:
        """Index in the base, start and stop of each sequence, int64 (n, 3)."""
        return np.stack([self._sequences, self._starts, self._stops], axis=1)

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._base.fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Number of timesteps of each sequence, integers (sequences,)."""
        return self._lengths

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> number of timesteps of each sequence, integers (sequences,)."""
        if self._lengths_of is None:
            bounds = self._find_bounds()
            self._lengths_of = {
                axis: self._lengths if axis == self._axis else narrow_lengths(stops - starts)
                for axis, (starts, stops) in bounds.items()
            }
        return self._lengths_of

    @property
    def linked_axes(self) -> Mapping[str, Axis]:
        """Axis -> its clock, which is that of whole recordings."""
        linked = get_linked_axes(self._base)
        return {axis: linked[axis] for axis in self._find_bounds() if axis in linked}

    def axis_starts(self, axis: str) -> NDArray[np.int64] | None:
        """Return the first timestep of each sequence in its recording, int64 (sequences,)."""
        starts, _ = self._find_bounds()[axis]
        before = get_axis_starts(self._base, axis)
        return starts if before is None else starts + before[self._sequences]

    def begins_along(self, axis: str) -> NDArray[np.int64]:
        """Return the first timestep of each sequence in the base, int64 (sequences,).

        For an axis that is not cut, such as that of a transform's results, this is the first
        timestep along the axis that is cut.
        """
        bounds = self._find_bounds()
        return bounds.get(axis, bounds[self._axis])[0]

    def _find_bounds(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return axis -> start and stop of each sequence in the base, int64 (n,); made once."""
        if self._bounds_of is None:
            bounds = {self._axis: (self._starts, self._stops)}
            linked = get_linked_axes(self._base)
            others = [
                axis
                for axis in list_axes(self._base.fields)
                if axis != self._axis and are_linked(linked, self._axis, axis)
            ]
            linker = None
            if others:
                linker = AxisLinker.from_store(self._base, self._axis, is_tiled=True)
            if linker is not None:
                for axis, spans in linker.follow(self.spans, others).items():
                    bounds[axis] = spans[:, 1], spans[:, 2]
            self._bounds_of = bounds
        return self._bounds_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the base's storage files."""
        return self._base.shards

    @property
    def fingerprint(self) -> str:
        """Digest of the base, the spans and their contexts (32 hex digits)."""
        if self._fingerprint is None:
            digest = hashlib.sha256(f"spans:{self._base.fingerprint}:{self._axis}".encode())
            for array in (self._sequences, self._starts, self._stops, self.contexts):
                digest.update(np.ascontiguousarray(array, dtype="<i8").data)
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of sequences by index, or of a batch's rows."""
        return name_sequences(
            numbers, lambda own: get_base_keys(self._base, self._find_in_base(own))
        )

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is not a view."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of a sequence in its own store, for an error."""
        if not 0 <= number < len(self):
            return DataLocation(dataset=self.title)
        return locate_sequence(self._base, int(self._find_in_base(np.array([number]))[0]))

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``.

        Raises:
            ConfigError: If the axis or a sequence does not exist, or a timestep is outside the span
                of its sequence.
        """
        bounds = self._find_bounds()
        if axis not in bounds:
            raise make_unknown_name_error(self.title, "axis", axis, self.lengths_of)
        spans = np.array(spans, dtype=np.int64)
        numbers = self._check_numbers(spans[:, 0].copy())
        starts, stops = bounds[axis]
        lengths = stops[numbers] - starts[numbers]
        outside = (spans[:, 1] < 0) | (spans[:, 2] > lengths)
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            raise ConfigError(
                f"{self.title}: timesteps of sequence {numbers[at]} must be in [0, {lengths[at]}), "
                f"but {spans[at, 1]}..{spans[at, 2]} were requested. Use a plan that was made for "
                "this data."
            )
        spans[:, 0] = self._sequences[numbers]
        spans[:, 1:] += starts[numbers][:, None]
        if len(bounds) == 1:
            columns: dict[str, Any] = self._base.read(spans, fields, axis=axis)
            return columns
        names, known = list(fields), self.fields
        axis_of = {name: known[name].axis if name in known else None for name in names}
        read = self._base.read(
            spans, [name for name in names if axis_of[name] in (axis, None)], axis=axis
        )
        for other in {axis_of[name] for name in names} - {axis, None}:  # whole spans
            own = [name for name in names if axis_of[name] == other]
            begin, end = (bound[numbers] for bound in bounds[str(other)])
            whole = np.stack([spans[:, 0], begin, end], axis=1)
            read |= self._base.read(whole, own, axis=str(other))
        return {name: read[name] for name in names}

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Announce sequences to the base, if it prefetches; return whether it accepts more."""
        base = self._base.base if isinstance(self._base, View) else self._base
        return not isinstance(base, SupportsPrefetch) or base.prefetch(self._find_in_base(numbers))

    def observe(self, on_sequence: Callable[[int], None]) -> Store:
        """Return the same store over a base that reports the sequences it reads, if it can."""
        if not isinstance(self._base, SupportsObserver):
            return self
        fixed = (self._axis, self._sequences, self._starts, self._stops, self.contexts)
        return SpanStore(self._base.observe(on_sequence), *fixed)

    def _check_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise ConfigError(
                f"{self.title}: the index of a sequence must be in [0, {len(self)}), but is "
                f"{find_outside(numbers, len(self))}. Use a plan that was made for this data."
            )
        return numbers

    def _find_in_base(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._base.base_numbers(self._sequences[self._check_numbers(numbers)])


def locate_in_base(
    store: Store, numbers: NDArray[np.int64], axis: str | None = None
) -> tuple[Store, NDArray[np.int64], NDArray[np.int64]]:
    """Return the base of views and time splits, and the positions of sequences in it.

    Args:
        store: A store, a view, or a part of a split.
        numbers: int64 (n,), indices of its sequences.
        axis: The axis of timesteps; None: the axis that each split cuts.

    Returns:
        The store; int64 (n,), the index of each sequence there; and int64 (n,), the timestep there
        with which each begins.
    """
    starts = np.zeros(len(numbers), dtype=np.int64)
    while isinstance(store, View | SpanStore | AddedFields):
        if isinstance(store, AddedFields):
            pass
        elif isinstance(store, View):
            numbers = store.base_numbers(numbers)
        else:
            starts = starts + store.begins_along(axis or store.axis)[numbers]
            numbers = store.spans[numbers, 0]
        store = store.base
    return store, numbers, starts


def find_base_name(store: Store, name: str) -> str:
    """Return the name of a field in the base of views, splits in time and added fields."""
    while isinstance(store, View | SpanStore | AddedFields):
        name = store.base_name(name) if isinstance(store, View) else name
        store = store.base
    return name


def find_contexts(store: Store) -> NDArray[np.int64] | None:
    """Return the timesteps at the start of each sequence that are context, int64 (sequences,).

    They belong to another part of the split, and are inputs only. None: no sequence has any.
    """
    if isinstance(store, View):
        contexts = find_contexts(store.base)
        return None if contexts is None else contexts[store.numbers]
    if isinstance(store, AddedFields):
        return find_contexts(store.base)
    if isinstance(store, ConcatStore):
        found = [find_contexts(part) for part in store.stores]
        if all(contexts is None for contexts in found):
            return None
        parts = zip(store.stores, found, strict=True)
        return np.concatenate(
            [np.zeros(len(part), np.int64) if one is None else one for part, one in parts]
        )
    if isinstance(store, SpanStore) and store.contexts.any():
        return store.contexts.astype(np.int64)
    return None


def find_longest_context(store: Store) -> int:
    """Return the most timesteps at the start of a sequence that are context."""
    contexts = find_contexts(store)
    return 0 if contexts is None else int(contexts.max(initial=0))
