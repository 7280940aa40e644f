"""Several stores as one, numbered through: what ``concat`` and lists of paths become.

Place in the flow: between stores and views. Reads: stores. Makes: a store.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.protocols import Expecting, Field, Store, Watched
from seqdata.storage.data_location import Place
from seqdata.storage.fields import default_axis, no_such
from seqdata.storage.hashing import hash_texts
from seqdata.storage.multi_shard_column import join_columns, owners_of
from seqdata.storage.selection import Carried
from seqdata.storage.store_repr import shape_of
from seqdata.storage.store_rows import is_named
from seqdata.storage.text_bytes import Raw, RawTexts, in_order, join_texts
from seqdata.storage.views import SequenceStore, View, place_of, title_of, whole

_RUN = 1 << 16  # sequences whose ids are looked at together


class JoinedStore(SequenceStore):
    """The sequences of several stores, one store after the other. Made by ``concat_stores``.

    A sequence keeps its id, where its store has ids; else it is named by its number in this store.

    Args:
        parts: Stores with the same fields, each with all its sequences.
    """

    def __init__(self, parts: Sequence[Store]) -> None:
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        self._lengths_of = _Behind(self._parts)
        self._fingerprint: str | None = None
        self._named: list[bool] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedStore, (self._parts,)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def title(self) -> str:
        """One line that names the stores."""
        names = ", ".join(map(title_of, self._parts[:3]))
        more = f" and {len(self._parts) - 3} more" if len(self._parts) > 3 else ""
        return f"concat({len(self)} sequences of {names}{more})"

    @property
    def parts(self) -> tuple[Store, ...]:
        """The stores, in their order."""
        return self._parts

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._parts[0].fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,)."""
        return self._lengths_of[default_axis(self._lengths_of)]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,); put together when asked."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the storage files of all stores."""
        return list(itertools.chain.from_iterable(part.shards for part in self._parts))

    @property
    def fingerprint(self) -> str:
        """Digest of the stores in their order (32 hex digits)."""
        if self._fingerprint is None:
            made = hashlib.sha256(b"concat\n")
            for part in self._parts:
                made.update(f"{part.fingerprint}\n".encode())
            self._fingerprint = made.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences."""
        asked = np.asarray(numbers, dtype=np.int64)
        found: list[str] = [""] * len(asked)
        for number, mine, local in self._dealt(asked):
            part = self._parts[number]
            named = self._has_ids()[number]
            keys = part.keys(part.base_numbers(local)) if named else map(str, asked[mine].tolist())
            for at, key in zip(mine.tolist(), keys, strict=True):
                found[at] = key
        return found

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> Raw:
        """Return the bytes of ids or of a field of texts; see ``raw.RawTexts``."""
        raws, order = [], []
        for number, mine, local in self._dealt(numbers):
            order.append(mine)
            part = self._parts[number]
            base = part.base if isinstance(part, View) else part
            there = part.base_numbers(local)
            if name is None and not self._has_ids()[number]:
                raws.append(join_texts(map(str, numbers[mine].tolist())))
            elif isinstance(base, RawTexts):
                stored = part.base_name(name) if name and isinstance(part, View) else name
                raws.append(base.raw_texts(stored, there))
            elif name is None:
                raws.append(join_texts(part.keys(there)))
            else:
                spans = np.stack([local, 0 * local, 0 * local], axis=1)
                axis = default_axis(part.lengths_of)
                raws.append(join_texts(part.read(spans, [name], axis=axis)[name]))
        return in_order(raws, np.concatenate(order)) if raws else join_texts(())

    def has_one_id_each(self, numbers: NDArray[np.int64]) -> bool:
        """Return whether sequences have different ids: stores may share some."""
        found = np.empty(len(numbers), dtype=np.uint64)
        for first in range(0, len(numbers), _RUN):
            run = slice(first, first + _RUN)
            values, offsets = self.raw_texts(None, numbers[run])
            found[run] = hash_texts(values, offsets, 0)
        return len(np.unique(found)) == len(found)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is not a view."""
        return numbers

    def place(self, number: int) -> Place:
        """Return the place of a sequence in its own store, for an error."""
        if not 0 <= number < len(self):
            return Place(dataset=self.title)
        at = int(self._owner(np.array([number]))[0])
        local = np.array([number - self._starts[at]], dtype=np.int64)
        part = self._parts[at]
        return place_of(part, int(part.base_numbers(local)[0]))

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        spans = np.array(spans, dtype=np.int64)
        names = list(fields)
        if axis not in self._lengths_of:
            raise no_such(self.title, "axis", axis, self._lengths_of)
        parts = self._owner(spans[:, 0])
        spans[:, 0] -= self._starts[parts]
        touched = np.unique(parts).tolist() or [0]
        if len(touched) == 1:
            columns: dict[str, Any] = self._parts[touched[0]].read(spans, names, axis=axis)
            return columns
        owner, index, rows = owners_of(parts)
        found = [
            self._parts[number].read(spans[mine], names, axis=axis)
            for number, mine in zip(touched, rows, strict=True)
        ]
        return join_columns(found, names, owner, index)

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Tell the stores what will be read, where they can use it."""
        more = True
        for number, _, local in self._dealt(numbers):
            part = self._parts[number]
            base = part.base if isinstance(part, View) else part
            if isinstance(base, Expecting):
                more &= base.expect(part.base_numbers(local))
        return more

    def watched(self, tell: Callable[[int], None]) -> Store:
        """Return the same store, which tells of what it reads, where its parts can."""

        def told(part: Store, start: int) -> Store:
            return (
                part.watched(lambda number: tell(start + number))
                if isinstance(part, Watched)
                else part
            )

        return JoinedStore(list(map(told, self._parts, self._starts[:-1].tolist())))

    def _has_ids(self) -> list[bool]:
        if self._named is None:
            self._named = [is_named(part) for part in self._parts]
        return self._named

    def _owner(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        wrong = (numbers < 0) | (numbers >= len(self))
        if wrong.any():
            raise ConfigError(
                f"{self.title}: no sequence {int(numbers[wrong][0])}, must be in [0, {len(self)}); "
                "was the plan made for other data?"
            )
        return np.searchsorted(self._starts, numbers, side="right") - 1

    def _dealt(
        self, numbers: NDArray[np.int64]
    ) -> Iterable[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Give, per store: its number, the places in what was asked for, and its own numbers."""
        owner = self._owner(np.asarray(numbers, dtype=np.int64))
        for number in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == number)
            yield number, mine, numbers[mine] - self._starts[number]


class _Behind(Mapping[str, NDArray[Any]]):
    """Axis -> lengths of several stores, put together at first use."""

    __slots__ = ("_made", "_parts")

    def __init__(self, parts: tuple[Store, ...]) -> None:
        self._parts = parts
        self._made: dict[str, NDArray[Any]] = {}

    def __getitem__(self, axis: str) -> NDArray[Any]:
        if axis not in self._made:
            self._made[axis] = np.concatenate([part.lengths_of[axis] for part in self._parts])
        return self._made[axis]

    def __iter__(self) -> Iterator[str]:
        first, *others = (part.lengths_of for part in self._parts)
        return (axis for axis in first if all(axis in one for one in others))

    def __len__(self) -> int:
        return len(list(iter(self)))


def concat_stores(stores: Sequence[Store]) -> SequenceStore:
    """Return the sequences of stores as one store; a store that is there twice is held once.

    Raises:
        ConfigError: If there is none, their fields differ, or they carry different transforms.
    """
    if not stores:
        raise ConfigError("concat: at least one store must be given, but the list is empty")
    if len(stores) == 1:
        return whole(stores[0])
    _check_fields(stores)
    carried = _common_transform(stores)
    parts: list[Store] = []
    places: dict[Any, int] = {}
    for store in stores:
        part, key = _part_of(store)
        if key not in places:
            places[key] = len(parts)
            parts.append(part)
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    numbers = [_numbers(store) + starts[places[_part_of(store)[1]]] for store in stores]
    base: Store = parts[0] if len(parts) == 1 else JoinedStore(parts)
    if carried is None and len(parts) == len(stores) and all(map(_is_whole, stores)):
        return whole(base)
    found = np.concatenate(numbers)
    names = base.names if isinstance(base, View) else None
    return View(base.base if isinstance(base, View) else base, found, carried, names)


def _part_of(store: Store) -> tuple[Store, Any]:
    """Return what a store selects from, with its names, and what tells it from others."""
    if not isinstance(store, View):
        return store, (id(store), None)
    names = store.names
    if names is None:
        return store.base, (id(store.base), None)
    return View(store.base, names=names), (id(store.base), tuple(names.items()))


def _is_whole(store: Store) -> bool:
    return not isinstance(store, View) or store.is_all


def _numbers(store: Store) -> NDArray[np.int64]:
    return store.numbers if isinstance(store, View) else np.arange(len(store), dtype=np.int64)


def _common_transform(stores: Sequence[Store]) -> Carried | None:
    """Return the transform that all stores carry, with the lengths of all of them."""
    carried = [store.carried if isinstance(store, View) else None for store in stores]
    first = carried[0]
    same = [one for one in carried if one is not None and first is not None]
    if not same and all(one is None for one in carried):
        return None
    if first is None or any(
        one is None or one.transform is not first.transform or one.axis != first.axis
        for one in carried
    ):
        raise ConfigError(
            "concat: all stores must carry the same transform, or none, but they differ. Call "
            "`concat` first and `measure_lengths` on what it returns"
        )
    return replace(first, lengths=np.concatenate([one.lengths for one in same]))


def _check_fields(stores: Sequence[Store]) -> None:
    first = dict(stores[0].fields)
    for number, store in enumerate(stores):
        if dict(store.fields) == first:
            continue
        raise ConfigError(
            f"concat: stores must have the same fields, but store {number} differs from store 0:\n"
            f"  0: {title_of(stores[0])}: {_schema(stores[0])}\n"
            f"  {number}: {title_of(store)}: {_schema(store)}\n"
            "Use `select` and `rename` to make them equal, or write one of them again"
        )


def _schema(store: Store) -> str:
    return ", ".join(
        f"{name} {field.dtype} {shape_of(field)}" for name, field in store.fields.items()
    )
