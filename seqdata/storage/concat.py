"""Several stores as one, with continuous numbering: the result of ``concat`` and lists of paths."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_axis_starts, get_base_keys, get_linked_axes
from seqdata.errors import ConfigError
from seqdata.index import ConcatLengths
from seqdata.linked_axes import Axis
from seqdata.protocols import Field, Store, SupportsObserver, SupportsPrefetch
from seqdata.storage.data_location import DataLocation
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.dataset_items import OpaqueItem
from seqdata.storage.fields import default_axis, make_unknown_name_error
from seqdata.storage.hashing import hash_texts
from seqdata.storage.ids import name_sequences
from seqdata.storage.multi_shard_column import assign_owners, join_columns
from seqdata.storage.selection import MeasuredTransform
from seqdata.storage.store_repr import format_shape
from seqdata.storage.store_rows import has_ids
from seqdata.storage.text_bytes import SupportsRawTexts, TextBytes, concat_texts, reorder_texts
from seqdata.storage.views import (
    SequenceStore,
    View,
    as_sequence_store,
    format_title,
    get_measured_transform,
    locate_sequence,
)

_IDS_PER_PASS = 1 << 16  # sequences whose ids are read together


class ConcatStore(SequenceStore):
    """The sequences of several stores, one store after the other. Created by ``concat_stores``.

    A sequence keeps its id if its store has ids; otherwise its index in this store names it.

    Args:
        stores: Stores with the same fields.
    """

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = tuple(stores)
        self._store_offsets = np.cumsum([0, *map(len, stores)], dtype=np.int64)
        self._lengths_of = ConcatLengths(self._stores)
        self._fingerprint: str | None = None
        self._ids_present: list[bool] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ConcatStore, (self._stores,)

    def __len__(self) -> int:
        return int(self._store_offsets[-1])

    @property
    def title(self) -> str:
        """One line that names the stores."""
        names = ", ".join(map(format_title, self._stores[:3]))
        more = f" and {len(self._stores) - 3} more" if len(self._stores) > 3 else ""
        return f"concat({len(self)} sequences of {names}{more})"

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores, in their order."""
        return self._stores

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._stores[0].fields

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> number of timesteps of each sequence, integers (sequences,); made lazily."""
        return self._lengths_of

    @property
    def linked_axes(self) -> Mapping[str, Axis]:
        """Axis -> its clock, of the axes that have the same one in all stores."""
        first, *others = map(get_linked_axes, self._stores)
        return {
            name: clock
            for name, clock in first.items()
            if name in self._lengths_of and all(other.get(name) == clock for other in others)
        }

    def axis_starts(self, axis: str) -> NDArray[np.int64] | None:
        """Return the first timestep of each sequence in its recording; None: all begin at 0."""
        found = [get_axis_starts(store, axis) for store in self._stores]
        if all(starts is None for starts in found):
            return None
        return np.concatenate(
            [
                np.zeros(len(store), dtype=np.int64) if starts is None else starts
                for store, starts in zip(self._stores, found, strict=True)
            ]
        )

    @property
    def shards(self) -> Sequence[str]:
        """Names of the storage files of all stores."""
        return list(itertools.chain.from_iterable(part.shards for part in self._stores))

    @property
    def fingerprint(self) -> str:
        """Digest of the stores in their order (32 hex digits)."""
        if self._fingerprint is None:
            digest = hashlib.sha256(b"concat\n")
            for part in self._stores:
                digest.update(f"{part.fingerprint}\n".encode())
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of sequences by index, or of a batch's rows."""
        return name_sequences(numbers, self._read_keys)

    def _read_keys(self, sequence_numbers: NDArray[np.int64]) -> list[str]:
        found: list[str] = [""] * len(sequence_numbers)
        for owner, rows, local in self.split_by_store(sequence_numbers):
            store = self._stores[owner]
            has_ids = self._find_stores_with_ids()[owner]
            keys = (
                get_base_keys(store, store.base_numbers(local))
                if has_ids
                else map(str, sequence_numbers[rows].tolist())
            )
            for at, key in zip(rows.tolist(), keys, strict=True):
                found[at] = key
        return found

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of ids or of a field of strings; see ``SupportsRawTexts``."""
        raws, order = [], []
        for owner, rows, local in self.split_by_store(numbers):
            order.append(rows)
            store = self._stores[owner]
            base = store.base if isinstance(store, View) else store
            base_numbers = store.base_numbers(local)
            if name is None and not self._find_stores_with_ids()[owner]:
                raws.append(concat_texts(map(str, numbers[rows].tolist())))
            elif name is None and isinstance(store, View) and store.id_name is not None:
                raws.append(concat_texts(store.base_keys(base_numbers)))
            elif isinstance(base, SupportsRawTexts):
                base_name = store.base_name(name) if name and isinstance(store, View) else name
                raws.append(base.raw_texts(base_name, base_numbers))
            elif name is None:
                raws.append(concat_texts(get_base_keys(store, base_numbers)))
            else:
                spans = np.stack([local, 0 * local, 0 * local], axis=1)
                axis = default_axis(store.lengths_of)
                raws.append(concat_texts(store.read(spans, [name], axis=axis)[name]))
        return reorder_texts(raws, np.concatenate(order)) if raws else concat_texts(())

    def has_unique_ids(self, numbers: NDArray[np.int64]) -> bool:
        """Return whether sequences, by index, have different ids: stores may share some."""
        hashes = np.empty(len(numbers), dtype=np.uint64)
        for first in range(0, len(numbers), _IDS_PER_PASS):
            run = slice(first, first + _IDS_PER_PASS)
            values, offsets = self.raw_texts(None, numbers[run])
            hashes[run] = hash_texts(values, offsets, 0)
        return len(np.unique(hashes)) == len(hashes)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is not a view."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of a sequence in its own store, for an error."""
        if not 0 <= number < len(self):
            return DataLocation(dataset=self.title)
        at = int(self._find_owners(np.array([number]))[0])
        local = np.array([number - self._store_offsets[at]], dtype=np.int64)
        store = self._stores[at]
        return locate_sequence(store, int(store.base_numbers(local)[0]))

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        spans = np.array(spans, dtype=np.int64)
        names = list(fields)
        if axis not in self._lengths_of:
            raise make_unknown_name_error(self.title, "axis", axis, self._lengths_of)
        owners = self._find_owners(spans[:, 0])
        spans[:, 0] -= self._store_offsets[owners]
        touched_stores = np.unique(owners).tolist() or [0]
        if len(touched_stores) == 1:
            columns: dict[str, Any] = self._stores[touched_stores[0]].read(spans, names, axis=axis)
            return columns
        owner, index, rows = assign_owners(owners)
        found = [
            self._stores[touched].read(spans[owned], names, axis=axis)
            for touched, owned in zip(touched_stores, rows, strict=True)
        ]
        return join_columns(found, names, owner, index)

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Announce sequences to the stores that prefetch; return whether all accept more."""
        more = True
        for owner, _, local in self.split_by_store(numbers):
            store = self._stores[owner]
            base = store.base if isinstance(store, View) else store
            if isinstance(base, SupportsPrefetch):
                more &= base.prefetch(store.base_numbers(local))
        return more

    def observe(self, on_sequence: Callable[[int], None]) -> Store:
        """Return the same store, which reports the numbers that it reads, if its stores can."""

        def watch(store: Store, start: int) -> Store:
            return (
                store.observe(lambda number: on_sequence(start + number))
                if isinstance(store, SupportsObserver)
                else store
            )

        return self._with_stores(list(map(watch, self._stores, self._store_offsets[:-1].tolist())))

    def _with_stores(self, stores: Sequence[Store]) -> ConcatStore:
        """Return a store like this one, of other stores."""
        return ConcatStore(stores)

    def _find_stores_with_ids(self) -> list[bool]:
        if self._ids_present is None:
            self._ids_present = [has_ids(part) for part in self._stores]
        return self._ids_present

    def _find_owners(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        wrong = (numbers < 0) | (numbers >= len(self))
        if wrong.any():
            raise ConfigError(
                f"{self.title}: the index of a sequence must be in [0, {len(self)}), but is "
                f"{int(numbers[wrong][0])}. Use a plan that was made for this data."
            )
        return np.searchsorted(self._store_offsets, numbers, side="right") - 1

    def split_by_store(
        self, numbers: NDArray[np.int64]
    ) -> Iterable[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield, for each store that has some of the sequences, where they are.

        That is: its index, their positions in ``numbers``, and their indices in the store.
        """
        owners = self._find_owners(np.asarray(numbers, dtype=np.int64))
        for owner in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == owner)
            yield owner, rows, numbers[rows] - self._store_offsets[owner]


def find_item_stores(store: Store) -> list[DatasetStore]:
    """Return the stores of Datasets whose items a store can pass as they are; empty if it cannot.

    It cannot if fields are selected or renamed, sequences are cut, or there is a transform.
    """
    if isinstance(store, View):
        is_whole = store.names is None and store.measured_transform is None
        return find_item_stores(store.base) if is_whole else []
    if isinstance(store, ConcatStore):
        found = [find_item_stores(each) for each in store.stores]
        return [each for own in found for each in own] if all(found) else []
    return [store] if isinstance(store, DatasetStore) else []


def read_items(store: Store, numbers: NDArray[np.int64]) -> list[OpaqueItem]:
    """Return items of Datasets as they are, where ``find_item_stores`` finds some.

    Args:
        store: The store.
        numbers: int64 (n,), indices of its sequences.
    """
    if isinstance(store, View):
        return read_items(store.base, store.base_numbers(numbers))
    if isinstance(store, ConcatStore):
        found: list[Any] = [None] * len(numbers)
        for owner, rows, local in store.split_by_store(numbers):
            items = read_items(store.stores[owner], local)
            for row, item in zip(rows.tolist(), items, strict=True):
                found[row] = item
        return found
    dataset: Any = store
    opaque: list[OpaqueItem] = dataset.read_items(numbers)
    return opaque


def concat_stores(stores: Sequence[Store]) -> SequenceStore:
    """Return the sequences of stores as one store; a store that occurs twice is held once.

    Raises:
        ConfigError: If there is none, their fields differ, or they carry different transforms.
    """
    if not stores:
        raise ConfigError("concat: at least one store must be given, but the list is empty")
    if len(stores) == 1:
        return as_sequence_store(stores[0])
    _check_fields(stores)
    if not have_common_transform(stores):
        raise ConfigError(
            "concat: all stores must carry the same transform, or none, but they differ. Call "
            "`concat` first, and `measure_lengths` on its result"
        )
    transform = join_transforms(stores)
    bases: list[Store] = []
    index_of: dict[Any, int] = {}
    for store in stores:
        base_store, key = _base_and_key(store)
        if key not in index_of:
            index_of[key] = len(bases)
            bases.append(base_store)
    base_offsets = np.cumsum([0, *map(len, bases)], dtype=np.int64)
    numbers = [
        _base_numbers(store) + base_offsets[index_of[_base_and_key(store)[1]]] for store in stores
    ]
    base: Store = bases[0] if len(bases) == 1 else ConcatStore(bases)
    if transform is None and len(bases) == len(stores) and all(map(_has_all_sequences, stores)):
        return as_sequence_store(base)
    found = np.concatenate(numbers)
    if not isinstance(base, View):
        return View(base, found, transform)
    return View(base.base, found, transform, base.names, base.id_name, base.own_linked_axes)


def _base_and_key(store: Store) -> tuple[Store, Any]:
    """Return the base store of a view, its names and clocks, and its key among the stores."""
    if not isinstance(store, View):
        return store, (id(store), None)
    names, id_name, linked = store.names, store.id_name, store.own_linked_axes
    if names is None and id_name is None and linked is None:
        return store.base, (id(store.base), None)
    clocks = None if linked is None else tuple(sorted(linked.items()))
    key = (id(store.base), None if names is None else tuple(names.items()), id_name, clocks)
    return View(store.base, names=names, id_name=id_name, linked_axes=linked), key


def _has_all_sequences(store: Store) -> bool:
    return not isinstance(store, View) or store.has_all_sequences


def _base_numbers(store: Store) -> NDArray[np.int64]:
    return store.numbers if isinstance(store, View) else np.arange(len(store), dtype=np.int64)


def have_common_transform(stores: Iterable[Store]) -> bool:
    """Return whether all stores carry the same transform, or none."""
    transforms = list(map(get_measured_transform, stores))
    first = transforms[0]
    if first is None:
        return all(carried is None for carried in transforms)
    return all(
        carried is not None and carried.transform is first.transform and carried.axis == first.axis
        for carried in transforms
    )


def join_transforms(stores: Iterable[Store]) -> MeasuredTransform | None:
    """Return the common transform of stores, with the lengths of all; None if there is none."""
    carried = [found for store in stores if (found := get_measured_transform(store)) is not None]
    if not carried:
        return None
    return replace(carried[0], lengths=np.concatenate([found.lengths for found in carried]))


def _check_fields(stores: Sequence[Store]) -> None:
    first = dict(stores[0].fields)
    for number, store in enumerate(stores):
        if dict(store.fields) == first:
            continue
        fields = dict(store.fields)
        names = [name for name in first | fields if first.get(name) != fields.get(name)]
        differing_fields = f" in {', '.join(map(repr, names))}" if names else ""
        raise ConfigError(
            "concat: stores must have the same fields, but store "
            f"{number} differs from store 0{differing_fields}:\n"
            f"  0: {format_title(stores[0])}: {_format_schema(stores[0])}\n"
            f"  {number}: {format_title(store)}: {_format_schema(store)}\n"
            "Use `select` and `rename` to make them equal, or write one of them again"
        )


def _format_schema(store: Store) -> str:
    return ", ".join(
        f"{name} {field.dtype} {format_shape(field)}" for name, field in store.fields.items()
    )
