"""Stores as people use them: looked at, and selected from. Nothing is copied but numbers.

``SequenceStore`` is what every store has beyond the contract of ``protocols.Store``, made of that
contract alone. ``View`` selects sequences and fields of a base; views of views compose to one array
of numbers and one table of names over the base. A view may carry a transform and the lengths that
were measured of its results; views of it carry them on. Place in the flow: between a store and the
index that is planned over. Reads: numbers, ids. Makes: stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError
from seqdata.protocols import Field, Store, Watched
from seqdata.storage.data_location import Place, Placing
from seqdata.storage.fields import default_axis, no_such
from seqdata.storage.selection import (
    Carried,
    Gathered,
    Names,
    checked_mask,
    checked_number,
    checked_numbers,
    outside,
    renamed,
    selected_names,
)
from seqdata.storage.store_repr import as_html, as_text
from seqdata.storage.store_rows import Predicate, answers_of, dict_at, dicts_of


class SequenceStore(Store):
    """What every opened store has: to look at sequences and fields, and to select from them.

    All of it is made of the members of ``protocols.Store``. A backend's store may inherit this
    class; one that does not is wrapped in a view of all its sequences when it is opened.

    Examples:
        >>> from seqdata import open_store
        >>> store = open_store([{"x": [1, 2, 3], "y": 7}, {"x": [4], "y": 8}])
        >>> store[-1]
        {'id': '1', 'x': array([4]), 'y': np.int64(8)}
        >>> [int(sequence["y"]) for sequence in store]
        [7, 8]
        >>> store.where(lambda sequence: sequence["y"] == 8).lengths.tolist()
        [1]
        >>> list(store.select("x").rename({"x": "tokens"}).fields)
        ['tokens']
        >>> print(store)
        MemoryStore(2 sequences)
          x  int64  (time,)
          y  int64  per sequence
          lengths along 'time': 1 █ █ 3, median 2
    """

    __slots__ = ()

    @property
    def title(self) -> str:
        """One line that names the store."""
        location = getattr(self, "location", None)
        where = f"{location!r}, " if isinstance(location, str) else ""
        return f"{type(self).__name__}({where}{len(self)} sequences)"

    def __repr__(self) -> str:
        return as_text(self, self.title)

    def _repr_html_(self) -> str:
        return as_html(self, self.title)

    @overload
    def __getitem__(self, number: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, number: slice) -> SequenceStore: ...
    def __getitem__(self, number: int | slice) -> dict[str, Any] | SequenceStore:
        """Return one sequence as a dict of its ``id`` and fields; of a slice, the view.

        Arrays are copies. What is stored is shown: a transform that a view carries is not applied.

        Args:
            number: From 0; negative numbers count from the end.

        Raises:
            IndexError: If there is no such sequence.
            DataError: If what is stored is damaged.
        """
        if isinstance(number, slice):
            return take(self, np.arange(*number.indices(len(self)), dtype=np.int64))
        return dict_at(self, checked_number(number, len(self)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return the sequences as dicts, in order, read some at a time; arrays are copies."""
        return dicts_of(self)

    def take(self, numbers: ArrayLike) -> View:
        """Return the view of sequences by number, in this order; repeats allowed."""
        return take(self, numbers)

    def where(self, mask: ArrayLike | Predicate) -> View:
        """Return the view of the sequences where ``mask`` is True.

        Args:
            mask: bool (sequences,), or a function of one sequence, a mapping of its fields, that
                returns a bool; only the fields that it asks for are read.
        """
        return where(self, mask)

    def select(self, *names: str) -> View:
        """Return the view of all sequences with these fields only, in this order."""
        return _named("select", self, selected_names(self.fields, names))

    def rename(self, names: Mapping[str, str]) -> View:
        """Return the view whose fields have other names.

        Args:
            names: Name -> new name; fields that are not named keep theirs.
        """
        return _named("rename", self, renamed(self.fields, names))


class View(SequenceStore):
    """A store that selects sequences and fields of a base store. Made by the functions below.

    Args:
        base: A store that is no view.
        numbers: int64 (sequences,), the base's numbers; repeats allowed. None: all, in its order.
        carried: A transform; the view's lengths along its axis are those of its results.
        names: Name -> the base's name, of the fields that are shown; None: all as they are.
    """

    __slots__ = ("_base", "_carried", "_fingerprint", "_lengths_of", "_names", "_numbers")

    def __init__(
        self,
        base: Store,
        numbers: NDArray[np.int64] | None = None,
        carried: Carried | None = None,
        names: Names | None = None,
    ) -> None:
        self._base = base
        self._numbers = numbers
        self._carried = carried
        self._names = names
        shown = {} if names is None else self.fields
        self._lengths_of = Gathered(base.lengths_of, shown, numbers, carried)
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self._base, self._numbers, self._carried, self._names)

    def __len__(self) -> int:
        return len(self._base if self._numbers is None else self._numbers)

    @property
    def title(self) -> str:
        """One line that names the view and its base."""
        base = title_of(self._base)
        return base if self.is_whole else f"View({len(self)} of {base})"

    @property
    def base(self) -> Store:
        """The store that is selected from."""
        return self._base

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The base's number of each sequence, int64 (sequences,)."""
        if self._numbers is None:
            return np.arange(len(self._base), dtype=np.int64)
        return self._numbers

    @property
    def carried(self) -> Carried | None:
        """The transform that is applied by whoever plays the view; None: there is none."""
        return self._carried

    @property
    def names(self) -> Names | None:
        """Name -> the base's name, of the fields that are shown; None: all as they are."""
        return self._names

    @property
    def is_all(self) -> bool:
        """Whether it has all sequences, in the base's order."""
        return self._numbers is None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is selected, renamed or carried: it stands for its base."""
        return self._numbers is None and self._names is None and self._carried is None

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        fields = self._base.fields
        if self._names is None:
            return fields
        return {name: fields[old] for name, old in self._names.items()}

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,)."""
        return self._lengths_of[default_axis(self._lengths_of)]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,); gathered when asked."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the base's storage files."""
        return self._base.shards

    @property
    def fingerprint(self) -> str:
        """Digest of the base, the numbers and the names (32 hex digits)."""
        if self.is_whole:
            return self._base.fingerprint
        if self._fingerprint is None:
            self._fingerprint = self._digest()
        return self._fingerprint

    def _digest(self) -> str:
        made = hashlib.sha256(self._base.fingerprint.encode())
        if self._numbers is not None or self._names is None:
            made.update(np.ascontiguousarray(self.numbers, dtype="<i8").data)
        if self._names is not None:
            made.update(f"names:{list(self._names.items())!r}".encode())
        if self._carried is not None:
            made.update(self._carried.axis.encode())
            made.update(np.ascontiguousarray(self._carried.lengths, dtype="<i8").data)
        return made.hexdigest()[:32]

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Give the ids of *base* sequences, the numbers that ``batch.ids`` holds."""
        return self._base.keys(numbers)

    def base_name(self, name: str) -> str:
        """Return the base's name of a field.

        Raises:
            ConfigError: If there is no such field.
        """
        if self._names is None:
            return name
        if name not in self._names:
            raise no_such(title_of(self), "field", name, self._names)
        return self._names[name]

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translate this view's numbers to the base store's.

        Raises:
            ConfigError: If there is no such sequence.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        if len(numbers) and int(numbers.view(np.uint64).max()) >= len(self):
            raise ConfigError(
                f"view: no sequence {outside(numbers, len(self))}, must be in [0, {len(self)}); "
                "was the plan made for other data?"
            )
        return numbers if self._numbers is None else self._numbers[numbers]

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``.

        What is read is not transformed, and along the axis of a carried transform not cut: spans
        there are timesteps of its results.
        """
        spans = np.array(spans, dtype=np.int64)
        spans[:, 0] = self.base_numbers(spans[:, 0])
        if self._carried is not None and axis == self._carried.axis:
            lengths_of = self._base.lengths_of
            axis = axis if axis in lengths_of else default_axis(lengths_of)
            spans[:, 1], spans[:, 2] = 0, lengths_of[axis][spans[:, 0]]
        if self._names is None:
            return self._base.read(spans, fields, axis=axis)
        wanted = {name: self.base_name(name) for name in fields}
        columns = self._base.read(spans, wanted.values(), axis=axis)
        return {name: columns[old] for name, old in wanted.items()}

    def watched(self, tell: Callable[[int], None]) -> Store:
        """Return the same view of a base that tells of what it reads, where it can."""
        if not isinstance(self._base, Watched):
            return self
        return View(self._base.watched(tell), self._numbers, self._carried, self._names)


def title_of(store: Store) -> str:
    """Return one line that names a store."""
    if isinstance(store, SequenceStore):
        return store.title
    return f"{type(store).__name__}({len(store)} sequences)"


def whole(store: Store) -> SequenceStore:
    """Return a store with all that ``SequenceStore`` has: as it is, or as a view of all of it."""
    return store if isinstance(store, SequenceStore) else View(store)


def carried_of(store: Store) -> Carried | None:
    """Give the transform that a store carries; None: it carries none."""
    return store.carried if isinstance(store, View) else None


def stored_of(store: Store) -> Store:
    """Give the same sequences as they lie, without the transform that a view of them carries."""
    if isinstance(store, View) and store.carried is not None:
        return View(store.base, None if store.is_all else store.numbers, names=store.names)
    return store


def carrying(store: Store, carried: Carried) -> View:
    """Give the view of all sequences of a store that carries a transform."""
    if isinstance(store, View):
        return View(store.base, store.numbers, carried, store.names)
    return View(store, np.arange(len(store), dtype=np.int64), carried)


def take(store: Store, numbers: ArrayLike) -> View:
    """Give the view of sequences by number, in the order given; repeats allowed.

    Args:
        store: Any store.
        numbers: Integers (n,), numbers of ``store``. None at all gives an empty view.

    Raises:
        ConfigError: If they are not integers in one dimension, or there is no such sequence.

    Examples:
        >>> from seqdata.storage.memory import MemoryStore
        >>> take(MemoryStore.of([[1], [2, 2], [3, 3, 3]]), [2, 0, 0]).lengths.tolist()
        [3, 1, 1]
    """
    return _selected(store, checked_numbers(numbers, len(store)))


def _selected(store: Store, wanted: NDArray[np.int64]) -> View:
    if isinstance(store, View):
        carried = store.carried
        if carried is not None:
            carried = replace(carried, lengths=carried.lengths[wanted])
        chosen = wanted if store.is_all else store.numbers[wanted]
        return View(store.base, chosen, carried, store.names)
    return View(store, wanted)


def where(store: Store, mask: ArrayLike | Predicate) -> View:
    """Return the view of the sequences where ``mask`` is True, in the store's order.

    Args:
        store: Any store.
        mask: bool (sequences,), or a function of one sequence that returns a bool.

    Raises:
        ConfigError: If it is not one bool per sequence.

    Examples:
        >>> from seqdata.storage.memory import MemoryStore
        >>> store = MemoryStore.of([[1], [2, 2], [3, 3, 3]])
        >>> len(where(store, store.lengths < 3))
        2
        >>> where(store, lambda sequence: sequence["x"].sum() > 3).numbers.tolist()
        [1, 2]
    """
    if callable(mask):
        mask = np.fromiter(answers_of(stored_of(store), mask), dtype=np.bool_, count=len(store))
    chosen = checked_mask(mask, len(store))
    return _selected(store, np.flatnonzero(chosen))


def _named(caller: str, store: Store, names: Names) -> View:
    if not isinstance(store, View):
        return View(store, names=names)
    if store.carried is not None:
        raise ConfigError(
            f"{caller}: a view that carries a transform must keep its fields, which the transform "
            f"takes. Call `{caller}` before `measure_lengths`, or pass `fields` to the Loader"
        )
    names = {name: store.base_name(old) for name, old in names.items()}
    return View(store.base, None if store.is_all else store.numbers, None, names)


def place_of(store: Store, number: int) -> Place:
    """Give the place of a base sequence, for an error, as far as the store knows it."""
    base = store.base if isinstance(store, View) else store
    if isinstance(base, Placing):
        return base.place(number)
    return Place(dataset=title_of(base), sequence=number)
