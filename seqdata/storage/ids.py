"""The ids of a store's sequences by position, and the positions of ids.

Ids are read in chunks, without a Python object per id if the store supports raw texts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, UnknownNameError, must_be
from seqdata.protocols import Store
from seqdata.storage.data_location import SupportsLocation
from seqdata.storage.fields import default_axis, has_numbers, is_text, make_unknown_name_error
from seqdata.storage.hashing import check_unique_ids, hash_texts
from seqdata.storage.selection import as_numbers, find_outside
from seqdata.storage.text_bytes import SupportsRawTexts, TextBytes, concat_texts

IDS_PER_PASS = 1 << 16  # sequences whose ids are read together
TEXT_BYTES_PER_PASS = 64 << 20  # that their texts may have, about

_MAX_SHOWN = 3  # ids named in a message, and shown of a store
_MAX_COMPARED = 64  # bytes at each end of an id that are compared to find the nearest


class Ids(Sequence[str]):
    """The ids of a store's sequences, in its order; read when they are asked for.

    Args:
        store: Any store. Positions are its own: ``ids[i]`` is the id of ``store[i]``.

    Examples:
        >>> from seqdata import open_store
        >>> store = open_store([{"id": name, "x": [1]} for name in "abc"])
        >>> store.take([2, 0]).ids[0]
        'c'
        >>> store.ids[[1, 2]]
        ['b', 'c']
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index: tuple[NDArray[np.uint64], NDArray[Any]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Ids, (self._store,)

    def __len__(self) -> int:
        return len(self._store)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:_MAX_SHOWN]))
        return f"Ids({len(self)}: {shown}{', …' if len(self) > _MAX_SHOWN else ''})"

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice | ArrayLike) -> list[str]: ...
    def __getitem__(self, position: Any) -> str | list[str]:
        """Return an id, or those of a slice or of integers in one dimension.

        Raises:
            IndexError: If there is no such sequence; a single position may count from the end.
            ConfigError: If positions are not integers.
        """
        count = len(self)
        if isinstance(position, slice):
            return self._read(np.arange(*position.indices(count), dtype=np.int64))
        if isinstance(position, int | np.integer) and not isinstance(position, bool):
            if not -count <= position < count:
                raise IndexError(
                    f"ids: the position must be in [{-count}, {count}), but is {position}"
                )
            return self._read(np.array([int(position) % count]))[0]
        positions = as_numbers("ids", position, "For ids of one or more sequences pass positions")
        if len(positions) and not 0 <= positions.min() <= positions.max() < count:
            outside = find_outside(positions, count)
            raise IndexError(f"ids: positions must be in [0, {count}), but one is {outside}")
        return self._read(positions)

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), IDS_PER_PASS):
            yield from self[first : first + IDS_PER_PASS]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(len(self._match([name])[0]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "ids: `copy` must be True or None, since an array is a copy, but is False"
            )
        return np.array(list(self), dtype=dtype)

    def find(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions of ids, int64 (n,).

        All ids are hashed at the first call. For a sequence that a view has more than once, the
        first position is returned.

        Raises:
            UnknownNameError: If an id does not exist; it is a ``KeyError``, too.
            ConfigError: If one of the ids belongs to two sequences, or ``names`` are not strings.
        """
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            found = f"{names!r:.80}"
            raise ConfigError(must_be("find: `ids`", "a list of strings", found, "Pass ['rec-1']"))
        owners, positions = self._match(names)
        is_found = np.zeros(len(names), dtype=bool)
        is_found[owners] = True
        if not is_found.all():
            raise self._make_missing_error(names, np.flatnonzero(~is_found))
        is_first = np.diff(owners, prepend=-1) != 0
        first_positions: NDArray[np.int64] = positions[is_first]
        self._check_same(names, owners[~is_first], positions[~is_first], first_positions)
        return first_positions

    def _read(self, positions: NDArray[np.int64]) -> list[str]:
        return get_base_keys(self._store, self._store.base_numbers(positions))

    def _match(self, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs of a name and a sequence with this id: numbers of names, positions."""
        if self._index is None:
            hashes = np.empty(len(self), dtype=np.uint64)
            for numbers, (values, offsets) in iter_id_texts(self._store):
                hashes[numbers] = hash_texts(values, offsets, 0)
            order = np.argsort(hashes, kind="stable")
            rows = order.astype(np.min_scalar_type(max(0, len(order) - 1)))
            self._index = hashes[order], rows
        hashes, rows = self._index
        wanted = hash_texts(*concat_texts(names), 0)
        lows = np.searchsorted(hashes, wanted, side="left")
        counts = np.searchsorted(hashes, wanted, side="right") - lows
        owners = np.repeat(np.arange(len(names)), counts)
        steps = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        positions = rows[np.repeat(lows, counts) + steps].astype(np.int64)
        is_same = [
            name == names[owner]
            for name, owner in zip(self._read(positions), owners.tolist(), strict=True)
        ]  # others have the same hash
        return owners[is_same], positions[is_same]

    def _check_same(
        self,
        names: Sequence[str],
        owners: NDArray[np.int64],
        positions: NDArray[np.int64],
        first_positions: NDArray[np.int64],
    ) -> None:
        """Raise if another sequence has an id, too."""
        firsts = first_positions[owners]
        bases = [self._store.base_numbers(numbers) for numbers in (firsts, positions)]
        for at in np.flatnonzero(bases[0] != bases[1])[:1]:
            locations = " and ".join(
                self._describe_location(int(numbers[at]), int(base[at]))
                for numbers, base in zip((firsts, positions), bases, strict=True)
            )
            raise ConfigError(
                f"find: id {names[int(owners[at])]!r} must belong to one sequence, but belongs to "
                f"{locations}. Choose by index: `take`, or `store[number]`"
            )

    def _describe_location(self, position: int, base: int) -> str:
        store: Any = self._store
        store = store if isinstance(store, SupportsLocation) else getattr(store, "base", store)
        details = store.locate(base).details if isinstance(store, SupportsLocation) else {}
        location = ", ".join(str(details[name]) for name in ("dataset", "shard") if name in details)
        return f"sequence {position}{f' ({location})' if location else ''}"

    def _make_missing_error(
        self, names: Sequence[str], missing: NDArray[np.int64]
    ) -> UnknownNameError:
        name = names[int(missing[0])]
        nearest = ", ".join(map(repr, self._find_nearest(name)))
        field = "; for a field use `select`" if name in self._store.fields else ""
        more = f" (and {len(missing) - 1} more of {len(names)})" if len(missing) > 1 else ""
        return UnknownNameError(
            f"find: the id must be one of {len(self)} sequences, but there is no {name!r}{more}. "
            f"{f'The nearest are {nearest}' if nearest else 'There is no sequence'}: look at "
            f"`store.ids`{field}"
        )

    def _find_nearest(self, name: str) -> list[str]:
        """Return the ids that have the most in common with a string at both ends."""
        best: list[tuple[int, int, int]] = []
        for numbers, texts in iter_id_texts(self._store):
            alike = count_common_ends(name.encode(), texts)
            extra = np.abs(np.diff(texts[1]) - len(name.encode()))
            order = np.lexsort((extra, -alike))[:_MAX_SHOWN]
            best += zip(
                alike[order].tolist(),
                (-extra[order]).tolist(),
                (-numbers[order]).tolist(),
                strict=True,
            )
            best = heapq.nlargest(_MAX_SHOWN, best)
        return list(dict.fromkeys(self[np.array([-at for _, _, at in best], dtype=np.int64)]))


def read_ids(store: Store, name: str, numbers: NDArray[np.int64]) -> list[str]:
    """Return the values of a field of strings or integers as ids.

    Args:
        store: Any store.
        name: The field, with one value per sequence.
        numbers: int64 (n,), indices of sequences.
    """
    spans = np.stack([numbers, 0 * numbers, 0 * numbers], axis=1)
    column = store.read(spans, [name], axis=default_axis(store.lengths_of))[name]
    if isinstance(column, list):
        return column
    return [str(int(column[at][0])) for at in range(len(column))]


def check_id_field(store: Store, name: str) -> None:
    """Raise if the values of a field cannot be the ids of a store's sequences.

    Raises:
        ConfigError: If there is no such field, or it is not of one string or integer per sequence.
        DecodeError: If two sequences have the same value; the message names both.
    """
    if name not in store.fields:
        raise make_unknown_name_error("id", "field", name, store.fields)
    field = store.fields[name]
    is_id = is_text(field) or (has_numbers(field, "iu") and field.logical is None)
    if field.axis is not None or field.shape or not is_id:
        axis = "" if field.axis is None else f" along {field.axis!r}"
        raise ConfigError(
            must_be(
                f"id: field {name!r}",
                "of one string or integer per sequence to name them",
                f"of {field.logical or field.dtype}{list(field.shape)}{axis}",
                "Name another field",
            )
        )
    bases = np.unique(store.base_numbers(np.arange(len(store), dtype=np.int64)), return_index=True)[
        1
    ]
    hashes = [np.empty(0, dtype=np.uint64)]
    for first in range(0, len(bases), IDS_PER_PASS):
        ids = read_ids(store, name, bases[first : first + IDS_PER_PASS])
        hashes.append(hash_texts(*concat_texts(ids), 0))
    check_unique_ids(
        np.concatenate(hashes),
        lambda at: read_ids(store, name, bases[at : at + 1])[0],
        remedy="name another field as `id`",
    )


def iter_id_texts(store: Store) -> Iterator[tuple[NDArray[np.int64], TextBytes]]:
    """Yield chunks of positions, int64 (n,), with their ids."""
    return iter_texts(len(store), lambda numbers: read_id_texts(store, numbers))


def read_id_texts(store: Store, numbers: NDArray[np.int64]) -> TextBytes:
    """Return the bytes of ids by position."""
    base_numbers = store.base_numbers(numbers)
    base: Any = store if isinstance(store, SupportsRawTexts) else getattr(store, "base", store)
    if isinstance(base, SupportsRawTexts) and getattr(store, "id_name", None) is None:
        return base.raw_texts(None, base_numbers)
    return concat_texts(get_base_keys(store, base_numbers))


def iter_texts(
    count: int, read: Callable[[NDArray[np.int64]], TextBytes]
) -> Iterator[tuple[NDArray[np.int64], TextBytes]]:
    """Yield chunks of indices below a count with their strings, sized to fit in memory.

    Args:
        count: Number of strings.
        read: Function from indices to their strings.
    """
    first, run = 0, min(IDS_PER_PASS, 1 << 10)
    while first < count:
        numbers = np.arange(first, min(first + run, count), dtype=np.int64)
        first += len(numbers)
        texts = read(numbers)
        yield numbers, texts
        fitting = TEXT_BYTES_PER_PASS * len(numbers) // (len(texts[0]) + 1)
        run = max(1, min(IDS_PER_PASS, 2 * run, fitting))


def count_common_ends(wanted: bytes, texts: TextBytes) -> NDArray[np.int64]:
    """Return the number of bytes that strings share with another at both ends, int64 (n,)."""
    values, offsets = texts
    lengths = np.diff(offsets)
    count = np.zeros(len(lengths), dtype=np.int64)
    if not len(values):
        return count
    reach = min(len(wanted), _MAX_COMPARED)
    for starts, step, side in ((offsets[:-1], 1, wanted), (offsets[1:] - 1, -1, wanted[::-1])):
        is_alike = np.ones(len(lengths), dtype=bool)
        for at in range(reach):
            places = np.clip(starts + step * at, 0, len(values) - 1)
            is_alike &= (at < lengths) & (values[places] == side[at])
            count += is_alike
    return np.minimum(count, lengths)


def name_sequences(source: Any, read: Callable[[NDArray[np.int64]], list[str]]) -> list[str]:
    """Return the ids of a batch's rows, empty for rows of padding, or of sequences by index.

    Args:
        source: A ``SequenceBatch``, whose ``ids`` are indices in the store; or such indices.
        read: Function from indices to ids.

    Raises:
        ConfigError: If ``source`` is neither, or its rows are of several parts.
    """
    if not is_batch(source):
        return read(as_numbers("keys", source, "Pass a batch, or a list of numbers such as [3]"))
    if isinstance(source.part, list):
        raise ConfigError(
            "keys: a batch must be of this store, but has rows of several parts of a mixture. Pass "
            "it to the mixture's store: `loader.store.keys(batch)`"
        )
    ids = np.asarray(source.ids, dtype=np.int64)
    has_span = ids >= 0
    names = iter(read(ids[has_span]))
    return [next(names) if has_any else "" for has_any in has_span.tolist()]


def is_batch(source: Any) -> bool:
    """Return whether an object is a batch, whose rows know their sequences."""
    return not isinstance(source, Mapping) and all(
        hasattr(source, name) for name in ("ids", "positions", "part")
    )
