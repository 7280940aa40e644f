"""Sequences of a store cut to spans of their timesteps: the result of a split in time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError
from seqdata.protocols import Field, Store, SupportsObserver, SupportsPrefetch
from seqdata.storage.concat import ConcatStore
from seqdata.storage.data_location import DataLocation, narrow_lengths
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.ids import name_sequences
from seqdata.storage.selection import find_outside
from seqdata.storage.views import SequenceStore, View, format_title, locate_sequence


class SpanStore(SequenceStore):
    """Sequences of a base store, each cut to a span of its timesteps. Made by ``split``.

    A sequence keeps its id. Nothing outside its span can be read.

    Args:
        base: A store whose ragged fields all run along one axis.
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
        """The base's number, the start and the stop of each sequence, int64 (n, 3)."""
        return np.stack([self._sequences, self._starts, self._stops], axis=1)

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._base.fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence, integers (sequences,)."""
        return self._lengths

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,)."""
        return {self._axis: self._lengths}

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
        """Return the ids of sequences by number, or of a batch's rows."""
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
            ConfigError: If a timestep is outside the span of its sequence.
        """
        if axis != self._axis:
            raise make_unknown_name_error(self.title, "axis", axis, self.lengths_of)
        spans = np.array(spans, dtype=np.int64)
        numbers = self._check_numbers(spans[:, 0].copy())
        lengths = self._stops[numbers] - self._starts[numbers]
        outside = (spans[:, 1] < 0) | (spans[:, 2] > lengths)
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            raise ConfigError(
                f"{self.title}: timesteps of sequence {numbers[at]} must be in [0, {lengths[at]}), "
                f"but {spans[at, 1]}..{spans[at, 2]} were asked for. Was the plan made for other "
                "data?"
            )
        spans[:, 0] = self._sequences[numbers]
        spans[:, 1:] += self._starts[numbers][:, None]
        columns: dict[str, Any] = self._base.read(spans, fields, axis=axis)
        return columns

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Announce the sequences that will be read to the base, if it prefetches."""
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
                f"{self.title}: numbers of sequences must be in [0, {len(self)}), but one is "
                f"{find_outside(numbers, len(self))}. Was the plan made for other data?"
            )
        return numbers

    def _find_in_base(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._base.base_numbers(self._sequences[self._check_numbers(numbers)])


def find_contexts(store: Store) -> NDArray[np.int64] | None:
    """Return the timesteps at the start of each sequence that are context, int64 (sequences,).

    They are inputs only, of another part. None: no sequence has any.
    """
    if isinstance(store, View):
        contexts = find_contexts(store.base)
        return None if contexts is None else contexts[store.numbers]
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
