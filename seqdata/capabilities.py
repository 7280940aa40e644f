"""Capabilities of stores beyond ``protocols.Store``: the loader asks for each by its protocol.

A store has a capability by having its members; nothing is inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

    from seqdata.linked_axes import Axis
    from seqdata.protocols import Store


@runtime_checkable
class SupportsPrefetch(Protocol):
    """A store that can fetch data before it is read: used by the prefetcher."""

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Start to fetch the data of sequences, without waiting for it.

        Args:
            numbers: int64 (n,), indices of sequences in the order in which they will be read.

        Returns:
            Whether more may be announced now; else these may have been too many, and are announced
            again later.
        """
        ...


@runtime_checkable
class SupportsShardCache(Protocol):
    """A store that keeps whole shards in a cache, which may be smaller than the data."""

    def estimate_fetches(self, batches: int, rows: float) -> float:
        """Return the number of times that an epoch, shuffled over all data, fetches the data.

        Args:
            batches: Number of batches of the epoch.
            rows: Number of sequences of each batch.
        """
        ...


@runtime_checkable
class SupportsLocality(Protocol):
    """A store that knows the location of its data: used by the prefetcher, and to cache lengths."""

    @property
    def is_local(self) -> bool:
        """Whether all data is on this machine, so that nothing needs to be fetched ahead."""
        ...

    @property
    def folder(self) -> Path | None:
        """Local folder of the data, in which caches may be kept; None: there is none."""
        ...


@runtime_checkable
class SupportsBase(Protocol):
    """A view: a store that selects from a base, whose indices ``base_numbers`` returns."""

    @property
    def base(self) -> Store:
        """The store that is selected from."""
        ...


@runtime_checkable
class SupportsBaseKeys(Protocol):
    """A store whose ``keys`` takes batches only, since its own indices are not those of a batch."""

    def base_keys(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences by the indices that ``base_numbers`` returns."""
        ...


def get_base_keys(store: Store, numbers: NDArray[np.int64]) -> list[str]:
    """Return the ids of sequences by the indices that ``store.base_numbers`` returns."""
    return store.base_keys(numbers) if isinstance(store, SupportsBaseKeys) else store.keys(numbers)


@runtime_checkable
class SupportsStores(Protocol):
    """A store that consists of others: worker processes open each of them again."""

    @property
    def stores(self) -> Sequence[Store]:
        """The stores, in order."""
        ...


@runtime_checkable
class SupportsObserver(Protocol):
    """A store that runs user code for each sequence: used by worker processes."""

    def observe(self, on_sequence: Callable[[int], None]) -> Store:
        """Return a copy of the store that reports the index of each sequence before reading it."""
        ...


@runtime_checkable
class SupportsItems(Protocol):
    """A store of a Dataset's items, for collators that return them unchanged."""

    @property
    def item_form(self) -> Any:
        """The form of items, an ``ItemForm``; None: dicts of tensors."""
        ...


@runtime_checkable
class SupportsCopy(Protocol):
    """A store whose pickle contains its data, so that worker processes reopen nothing."""

    @property
    def is_copied_to_workers(self) -> bool:
        """Whether the pickle contains the data; else a reopened store's fingerprint is compared."""
        ...


@runtime_checkable
class SupportsLinkedAxes(Protocol):
    """A store that knows sampling rates of axes, so that windows cover the same time on each."""

    @property
    def linked_axes(self) -> Mapping[str, Axis]:
        """Axis -> its rate and the time of its first sample; axes of unknown rate are omitted."""
        ...


def get_linked_axes(store: Store) -> Mapping[str, Axis]:
    """Return the axes of a store whose sampling rates are known, with their clocks."""
    return store.linked_axes if isinstance(store, SupportsLinkedAxes) else {}


@runtime_checkable
class SupportsAxisOffsets(Protocol):
    """A store whose sequences may be pieces of recordings."""

    def axis_starts(self, axis: str) -> NDArray[np.int64] | None:
        """Return the first timestep of each sequence in its recording, int64 (sequences,).

        None: all begin at 0.
        """
        ...


def get_axis_starts(store: Store, axis: str) -> NDArray[np.int64] | None:
    """Return the first timestep of each sequence in its recording; None: all begin at 0."""
    return store.axis_starts(axis) if isinstance(store, SupportsAxisOffsets) else None


@runtime_checkable
class SupportsVersion(Protocol):
    """A store over files of others, whose fingerprint does not change with every byte of them."""

    @property
    def version(self) -> str | None:
        """Digest that differs from that of any later version; None: a stream that is read once."""
        ...


@runtime_checkable
class SupportsMissing(Protocol):
    """A store of files that knows the values which only some sequences of a file have."""

    def find_missing(self, name: str) -> tuple[int, Sequence[int]]:
        """Return the sequences without a value that others of their file have.

        Such a value does not become a field.

        Args:
            name: Name of the value, which would be that of the field.

        Returns:
            Their number, 0 if no or all sequences of each file have it, and the indices of some.
        """
        ...


def find_missing(store: Store, name: str) -> tuple[int, Sequence[str]]:
    """Return the number of sequences without a value that others have, and the ids of some.

    For a view of only some sequences of a store, the number is 0, since it is not known.
    """
    base = store.base if isinstance(store, SupportsBase) else store
    if not isinstance(base, SupportsMissing) or len(base) != len(store):
        return 0, ()
    count, numbers = base.find_missing(name)
    return count, base.keys(np.asarray(numbers, dtype=np.int64))


def get_version(store: Store) -> str | None:
    """Return the version of a store's data, empty if its fingerprint is one; None: it has none."""
    if isinstance(store, SupportsVersion):
        return store.version
    if isinstance(store, SupportsBase):
        return get_version(store.base)
    if isinstance(store, SupportsStores):
        found = [get_version(each) for each in store.stores]
        return None if None in found else "".join(map(str, found))
    return ""
