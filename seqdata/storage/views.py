"""Stores as users see them: to inspect and to select from. Only indices are copied.

``SequenceStore`` is what every store has beyond the contract of ``protocols.Store``, made of that
contract alone. ``View`` selects sequences and fields of a base; views of views compose to one array
of numbers and one table of names over the base. A view may carry a transform and the lengths that
were measured of its results; views of it carry them on. Place in the flow: between a store and the
index that is planned over. Reads: numbers, ids. Makes: stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError
from seqdata.protocols import Field, Store, SupportsObserver
from seqdata.storage.data_location import DataLocation, SupportsLocation
from seqdata.storage.fields import default_axis, make_unknown_name_error
from seqdata.storage.ids import Ids, is_batch, name_sequences
from seqdata.storage.selection import (
    MeasuredTransform,
    NameMap,
    SelectedLengths,
    check_mask,
    check_number,
    check_numbers,
    check_planned,
    digest_selection,
    rename_fields,
    select_names,
)
from seqdata.storage.store_repr import format_html, format_text
from seqdata.storage.store_rows import Predicate, iter_answers, iter_dicts, read_dict


class SequenceStore(Store):
    """Base of every opened store: look at sequences and fields, and select from them.

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
        return format_text(self, self.title)

    def _repr_html_(self) -> str:
        return format_html(self, self.title)

    @property
    def ids(self) -> Ids:
        """The id of each sequence, by its own positions as ``lengths``; read when asked for."""
        kept: dict[str, Any] = self.__dict__
        if "_ids" not in kept:
            kept["_ids"] = Ids(self)
        found: Ids = kept["_ids"]
        return found

    def find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions of sequences by their ids, int64 (n,), as ``take`` takes them.

        Raises:
            UnknownNameError: If there is no such id; it is a ``KeyError``, too.
            ConfigError: If two sequences have an id.
        """
        return self.ids.find(ids)

    @overload
    def __getitem__(self, number: int | str) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, number: slice) -> SequenceStore: ...
    def __getitem__(self, number: int | str | slice) -> dict[str, Any] | SequenceStore:
        """Return one sequence as a dict of its ``id`` and fields; of a slice, the view.

        Arrays are copies. What is stored is shown: a transform that a view carries is not applied.

        Args:
            number: Its position, from 0, negative ones from the end; or its id.

        Raises:
            IndexError: If there is no such sequence.
            UnknownNameError: If there is no such id; it is a ``KeyError``, too.
            DataError: If what is stored is damaged.
        """
        if isinstance(number, slice):
            return take(self, np.arange(*number.indices(len(self)), dtype=np.int64))
        if isinstance(number, str):
            return read_dict(self, int(self.find([number])[0]))
        return read_dict(self, check_number(number, len(self)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return the sequences as dicts, in order, read some at a time; arrays are copies."""
        return iter_dicts(self)

    def take(self, numbers: ArrayLike) -> View:
        """Return the view of sequences by their positions here, in this order; repeats allowed."""
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
        return _select_fields("select", self, select_names(self.fields, names))

    def rename(self, names: Mapping[str, str]) -> View:
        """Return the view whose fields have other names.

        Args:
            names: Name -> new name; fields that are not named keep theirs.
        """
        return _select_fields("rename", self, rename_fields(self.fields, names))


class View(SequenceStore):
    """A store that selects sequences and fields of a base store. Made by the functions below.

    Args:
        base: A store that is not a view.
        numbers: int64 (sequences,), the base's numbers; repeats allowed. None: all, in its order.
        measured_transform: A transform; the view's lengths along its axis are those of its results.
        names: Name -> the base's name, of the fields that are shown; None: all as they are.
    """

    __slots__ = (
        "_base",
        "_fingerprint",
        "_lengths_of",
        "_measured_transform",
        "_names",
        "_numbers",
    )

    def __init__(
        self,
        base: Store,
        numbers: NDArray[np.int64] | None = None,
        measured_transform: MeasuredTransform | None = None,
        names: NameMap | None = None,
    ) -> None:
        self._base = base
        self._numbers = numbers
        self._measured_transform = measured_transform
        self._names = names
        fields = {} if names is None else self.fields
        self._lengths_of = SelectedLengths(base.lengths_of, fields, numbers, measured_transform)
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self._base, self._numbers, self._measured_transform, self._names)

    def __len__(self) -> int:
        return len(self._base if self._numbers is None else self._numbers)

    @property
    def title(self) -> str:
        """One line that names the view and its base."""
        base = format_title(self._base)
        return base if self.is_identity else f"View({len(self)} of {base})"

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
    def measured_transform(self) -> MeasuredTransform | None:
        """The transform that the engine applies to what it reads; None: there is none."""
        return self._measured_transform

    @property
    def names(self) -> NameMap | None:
        """Name -> the base's name, of the fields that are shown; None: all as they are."""
        return self._names

    @property
    def has_all_sequences(self) -> bool:
        """Whether all sequences of the base are selected, in their order."""
        return self._numbers is None

    @property
    def is_identity(self) -> bool:
        """Whether nothing is selected, renamed or carried: it stands for its base."""
        return self._numbers is None and self._names is None and self._measured_transform is None

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
        if self.is_identity:
            return self._base.fingerprint
        if self._fingerprint is None:
            numbers = None if self._numbers is None and self._names is not None else self.numbers
            self._fingerprint = digest_selection(
                self._base.fingerprint, numbers, self._names, self._measured_transform
            )
        return self._fingerprint

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of a batch's rows.

        Args:
            numbers: A batch. Of a view of all sequences, in the base's order, also integers (n,).

        Raises:
            ConfigError: If these are numbers, which may count by the view or by its base.
        """
        if self._numbers is not None and not is_batch(numbers):
            raise ConfigError(
                f"keys: a batch must be passed to a view, but is {numbers!r:.80}: numbers do not "
                "say whether they count by the view or by its base. For positions of the view use "
                "`view.ids[numbers]`; for what a batch holds `view.keys(batch)`, or "
                "`view.base.keys(numbers)` for numbers of the base, as in `batch.ids`"
            )
        return name_sequences(numbers, self.base_keys)

    def base_keys(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences by the base's numbers, which ``base_numbers`` returns."""
        return get_base_keys(self._base, numbers)

    def base_name(self, name: str) -> str:
        """Return the base's name of a field.

        Raises:
            ConfigError: If there is no such field.
        """
        if self._names is None:
            return name
        if name not in self._names:
            raise make_unknown_name_error(format_title(self), "field", name, self._names)
        return self._names[name]

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translate this view's numbers to the base store's.

        Raises:
            ConfigError: If there is no such sequence.
        """
        numbers = check_planned(np.asarray(numbers, dtype=np.int64), len(self))
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
        if self._measured_transform is not None and axis == self._measured_transform.axis:
            lengths_of = self._base.lengths_of
            axis = axis if axis in lengths_of else default_axis(lengths_of)
            spans[:, 1], spans[:, 2] = 0, lengths_of[axis][spans[:, 0]]
        if self._names is None:
            return self._base.read(spans, fields, axis=axis)
        base_names = {name: self.base_name(name) for name in fields}
        columns = self._base.read(spans, base_names.values(), axis=axis)
        return {name: columns[old] for name, old in base_names.items()}

    def observe(self, on_sequence: Callable[[int], None]) -> Store:
        """Return the same view of a base that reports the sequences it reads, if it can."""
        if not isinstance(self._base, SupportsObserver):
            return self
        base = self._base.observe(on_sequence)
        return View(base, self._numbers, self._measured_transform, self._names)


def format_title(store: Store) -> str:
    """Return one line that names a store."""
    if isinstance(store, SequenceStore):
        return store.title
    return f"{type(store).__name__}({len(store)} sequences)"


def as_sequence_store(store: Store) -> SequenceStore:
    """Return a store with all that ``SequenceStore`` has: as it is, or as a view of all of it."""
    return store if isinstance(store, SequenceStore) else View(store)


def get_measured_transform(store: Store) -> MeasuredTransform | None:
    """Return the transform that a store carries; None if it carries none."""
    return store.measured_transform if isinstance(store, View) else None


def without_transform(store: Store) -> Store:
    """Return the same sequences without the transform that a view of them carries."""
    if isinstance(store, View) and store.measured_transform is not None:
        return View(
            store.base, None if store.has_all_sequences else store.numbers, names=store.names
        )
    return store


def with_transform(store: Store, measured_transform: MeasuredTransform) -> View:
    """Return the view of all sequences of a store that carries a transform."""
    if isinstance(store, View):
        return View(store.base, store.numbers, measured_transform, store.names)
    return View(store, np.arange(len(store), dtype=np.int64), measured_transform)


def take(store: Store, numbers: ArrayLike) -> View:
    """Return the view of sequences by number, in the order given; repeats allowed.

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
    return _select(store, check_numbers(numbers, len(store)))


def _select(store: Store, numbers: NDArray[np.int64]) -> View:
    if isinstance(store, View):
        transform = store.measured_transform
        if transform is not None:
            transform = replace(transform, lengths=transform.lengths[numbers])
        chosen = numbers if store.has_all_sequences else store.numbers[numbers]
        return View(store.base, chosen, transform, store.names)
    _check_selectable(store)
    return View(store, numbers)


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
        mask = np.fromiter(
            iter_answers(without_transform(store), mask), dtype=np.bool_, count=len(store)
        )
    chosen = check_mask(mask, len(store))
    return _select(store, np.flatnonzero(chosen))


def _check_selectable(store: Store) -> None:
    """Raise if parts of a mixture carry transforms, which a view of all of them could not carry."""
    if getattr(store, "carries_transforms", False):
        raise ConfigError(
            f"{format_title(store)}: parts that carry transforms must be selected from one by one, "
            "but this is of all of them. Select from `store.parts[name]`, before they are mixed"
        )


def _select_fields(caller: str, store: Store, names: NameMap) -> View:
    if not isinstance(store, View):
        _check_selectable(store)
        return View(store, names=names)
    if store.measured_transform is not None:
        raise ConfigError(
            f"{caller}: a view that carries a transform must keep its fields, which the transform "
            f"takes. Call `{caller}` before `measure_lengths`, or pass `fields` to the Loader"
        )
    names = {name: store.base_name(old) for name, old in names.items()}
    return View(store.base, None if store.has_all_sequences else store.numbers, None, names)


def locate_sequence(store: Store, number: int) -> DataLocation:
    """Return the location of a base sequence, for an error, as far as the store knows it."""
    base = store.base if isinstance(store, View) else store
    if isinstance(base, SupportsLocation):
        return base.locate(number)
    return DataLocation(dataset=format_title(base), sequence=number)
