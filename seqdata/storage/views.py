"""Stores for users, to inspect and to select from. Only indices are copied.

``SequenceStore`` adds methods to the protocol ``protocols.Store``, on which alone they depend.
``View`` selects sequences and fields of a base; views of views are combined to one array of indices
and one table of names over the base. A view may have a transform and the measured lengths of its
results, which views of it keep. Place in the flow: between a store and the index of plans. Reads:
indices, ids. Makes: stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.capabilities import get_axis_starts, get_base_keys, get_linked_axes
from seqdata.errors import ConfigError, warn
from seqdata.linked_axes import Axis
from seqdata.plotting.axes import draw
from seqdata.protocols import Field, Store, SupportsObserver
from seqdata.storage.data_location import DataLocation, SupportsLocation
from seqdata.storage.fields import ID_FIELD, default_axis, make_unknown_name_error
from seqdata.storage.ids import Ids, check_id_field, is_batch, name_sequences, read_ids
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
from seqdata.storage.store_repr import chart_store, format_html, format_text
from seqdata.storage.store_rows import Predicate, iter_answers, iter_dicts, read_dict


class SequenceStore(Store):
    """Base of every opened store, with methods to inspect and select sequences and fields.

    The methods depend only on the members of ``protocols.Store``. The store of a backend may
    inherit this class; otherwise it is wrapped in a view of all its sequences when it is opened.

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

    def plot(self, ax: Any = None, *, axis: str | None = None) -> Any:
        """Draw a histogram of the lengths with matplotlib.

        Args:
            ax: Axes to draw into; None: axes of a new figure.
            axis: Axis of the lengths; None: all axes, or with ``ax`` only ``time``, else the first.

        Returns:
            The axes of matplotlib, or the figure if several axes of the data are drawn.

        Raises:
            ConfigError: If matplotlib is not installed, or ``ax`` is not axes of matplotlib.
            UnknownNameError: If the data does not have the axis.

        Examples:
            >>> from seqdata import open_store
            >>> open_store([[1, 2, 3], [4]]).plot().get_xlabel()
            "length along 'time', timesteps"
        """
        return draw(chart_store(self, axis, is_single=ax is not None), ax)

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,)."""
        return self.lengths_of[default_axis(self.lengths_of)]

    @property
    def ids(self) -> Ids:
        """Id of each sequence, in the order of ``lengths``; ids are read on access."""
        kept: dict[str, Any] = self.__dict__
        if "_ids" not in kept:
            kept["_ids"] = Ids(self)
        found: Ids = kept["_ids"]
        return found

    def find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions of sequences with given ids, int64 (n,), for ``take``.

        Raises:
            UnknownNameError: If an id does not exist; this is also a ``KeyError``.
            ConfigError: If a given id belongs to two sequences, or is not a string.
        """
        return self.ids.find(ids)

    @overload
    def __getitem__(self, number: int | str) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, number: slice) -> SequenceStore: ...
    def __getitem__(self, number: int | str | slice) -> dict[str, Any] | SequenceStore:
        """Return one sequence as a dict of its ``id`` and fields, or a view for a slice.

        Arrays are copies. Values are as stored; the transform of a view is not applied.

        Args:
            number: Position of the sequence, from 0 (negative: from the end), or its id.

        Raises:
            IndexError: If the position is out of range.
            UnknownNameError: If the id does not exist; this is also a ``KeyError``.
            ConfigError: If this is neither integer, string nor slice, or the id is not unique.
            DataError: If the stored data is damaged.
        """
        if isinstance(number, slice):
            return take(self, np.arange(*number.indices(len(self)), dtype=np.int64))
        if isinstance(number, str):
            return read_dict(self, int(self.find([number])[0]))
        return read_dict(self, check_number(number, len(self)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the sequences as dicts, in order; arrays are copies."""
        return iter_dicts(self)

    def take(self, numbers: ArrayLike) -> View:
        """Return the view of sequences at given positions, in this order; repeats are allowed.

        Raises:
            ConfigError: If these are not integers in one dimension, a position does not exist, or
                the store is a mixture whose parts carry transforms.
        """
        return take(self, numbers)

    def where(self, mask: ArrayLike | Predicate) -> View:
        """Return the view of the sequences where ``mask`` is True.

        Args:
            mask: bool (sequences,), or a function of one sequence (a mapping of its fields) that
                returns a bool. Only the fields that the function uses are read.

        Raises:
            ConfigError: If the mask or a result is not bool, or parts of a mixture have transforms.
        """
        return where(self, mask)

    def select(self, *names: str) -> View:
        """Return the view of all sequences with only the given fields, in this order.

        Raises:
            ConfigError: If no field is named, or the store is a view with a transform.
            UnknownNameError: If a field does not exist.
        """
        return _select_fields("select", self, select_names(self.fields, names))

    def rename(self, names: Mapping[str, str]) -> View:
        """Return a view with renamed fields.

        Args:
            names: Name -> new name; other fields keep their names.

        Raises:
            ConfigError: If two fields would have one name, or the store is a view with a transform.
            UnknownNameError: If a field does not exist.
        """
        return _select_fields("rename", self, rename_fields(self.fields, names))

    def with_fields(
        self, fields: Mapping[str, Any], axes: Mapping[str, str | None] | None = None
    ) -> SequenceStore:
        """Return the store with further fields, which are kept in memory.

        Args:
            fields: Name -> values in the order of this store, or dict id -> value. Arrays and lists
                of numbers or strings have a value per sequence; a list of arrays is ragged.
            axes: Field -> axis, which may be new, or None for one value per sequence.

        Raises:
            ConfigError: If a name exists, there is not one value for each sequence, or the
                timesteps of a value do not match its axis.
            UnknownNameError: If an id has no value.
            DecodeError: If values differ in dtype or shape.

        Examples:
            >>> from seqdata import open_store
            >>> store = open_store([{"id": "a", "x": [1, 2]}, {"id": "b", "x": [3]}])
            >>> store.with_fields({"label": {"b": 1, "a": 0}})["b"]["label"]
            np.int64(1)
        """
        from seqdata.storage.added_fields import add_fields  # which inherits this class

        return add_fields(self, fields, axes)


class View(SequenceStore):
    """Store that selects sequences and fields of a base store; functions such as ``take`` make it.

    Args:
        base: Store that is not a view.
        numbers: int64 (sequences,), indices in the base, which may repeat; None: all, in order.
        measured_transform: Transform, with the lengths of its results; None: no transform.
        names: Name -> name in the base, for each field of the view; None: all fields, unchanged.
        id_name: Name in the base of the field of ids; None: the ids of the base.
        linked_axes: Axis -> clock; None: the clocks of the base.
    """

    __slots__ = (
        "_base",
        "_fingerprint",
        "_id_name",
        "_lengths_of",
        "_linked_axes",
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
        id_name: str | None = None,
        linked_axes: Mapping[str, Axis] | None = None,
    ) -> None:
        self._base = base
        self._linked_axes = linked_axes
        self._numbers = numbers
        self._measured_transform = measured_transform
        self._names = names
        self._id_name = id_name
        fields = {} if names is None else self.fields
        self._lengths_of = SelectedLengths(base.lengths_of, fields, numbers, measured_transform)
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self._base, self._numbers, self._measured_transform, self._names)
        return View, (*arguments, self._id_name, self._linked_axes)

    def __len__(self) -> int:
        return len(self._base if self._numbers is None else self._numbers)

    @property
    def title(self) -> str:
        """One line that names the view and its base."""
        base = format_title(self._base)
        chosen = (self._numbers, self._names, self._measured_transform, self._id_name)
        is_base = all(each is None for each in chosen)
        return base if is_base else f"View({len(self)} of {base})"

    @property
    def base(self) -> Store:
        """The store that is selected from."""
        return self._base

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Index of each sequence in the base, int64 (sequences,)."""
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
    def id_name(self) -> str | None:
        """The base's name of the field that holds the ids; None: its own ids."""
        return self._id_name

    @property
    def has_all_sequences(self) -> bool:
        """True if the view was made without ``numbers``: it has all sequences in order."""
        return self._numbers is None

    @property
    def is_identity(self) -> bool:
        """Whether the view is the same as its base: nothing is selected or replaced."""
        chosen = (self._numbers, self._names, self._measured_transform, self._id_name)
        return self._linked_axes is None and all(each is None for each in chosen)

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        fields = self._base.fields
        if self._names is None:
            return fields
        return {name: fields[old] for name, old in self._names.items()}

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> number of timesteps of each sequence, integers (sequences,); made lazily."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the base's storage files."""
        return self._base.shards

    @property
    def fingerprint(self) -> str:
        """Digest of the base and of all that the view selects or replaces (32 hex digits)."""
        if self.is_identity:
            return self._base.fingerprint
        if self._fingerprint is None:
            has_others = self._names is not None or self._id_name is not None
            has_others |= self._linked_axes is not None and self._measured_transform is None
            numbers = None if self._numbers is None and has_others else self.numbers
            self._fingerprint = digest_selection(
                self._base.fingerprint, numbers, self._names, self._measured_transform,
                self._id_name, self._linked_axes,
            )  # fmt: skip
        return self._fingerprint

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of a batch's rows.

        Args:
            numbers: A batch. Of a view of all sequences, in the base's order, also integers (n,).

        Raises:
            ConfigError: If a view that selects sequences is given integers, which may be indices of
                the view or of its base.
        """
        if self._numbers is not None and not is_batch(numbers):
            raise ConfigError(
                f"keys: the argument for a view must be a batch, but is {numbers!r:.80}: integers "
                "could be indices of the view or of its base. For positions of the view use "
                "`view.ids[numbers]`; for what a batch holds `view.keys(batch)`, or "
                "`view.base.keys(numbers)` for numbers of the base, as in `batch.ids`"
            )
        return name_sequences(numbers, self.base_keys)

    def base_keys(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences by the base's numbers, which ``base_numbers`` returns."""
        if self._id_name is None:
            return get_base_keys(self._base, numbers)
        return read_ids(self._base, self._id_name, numbers)

    def base_name(self, name: str) -> str:
        """Return the base's name of a field.

        Raises:
            UnknownNameError: If fields are selected or renamed, and none has this name.
        """
        if self._names is None:
            return name
        if name not in self._names:
            raise make_unknown_name_error(format_title(self), "field", name, self._names)
        return self._names[name]

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices in the base store of sequences by their indices in this view.

        Raises:
            ConfigError: If there is no such sequence.
        """
        numbers = check_planned(np.asarray(numbers, dtype=np.int64), len(self))
        return numbers if self._numbers is None else self._numbers[numbers]

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``.

        The transform of the view is not applied. Spans along its axis count timesteps of its
        results, so sequences are read whole there.
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
        own = (self._numbers, self._measured_transform, self._names, self._id_name)
        return View(base, *own, self._linked_axes)

    @property
    def linked_axes(self) -> Mapping[str, Axis]:
        """Axis -> its clock, without that of an axis whose lengths a transform changes."""
        carried, own = self._measured_transform, self._linked_axes
        linked = get_linked_axes(self._base) if own is None else own
        changed = None if carried is None else carried.axis
        shown = [name for name in self._lengths_of if name != changed]
        return {name: linked[name] for name in shown if name in linked}

    @property
    def own_linked_axes(self) -> Mapping[str, Axis] | None:
        """The clocks that replace those of the base; None: the base keeps its clocks."""
        return self._linked_axes

    def axis_starts(self, axis: str) -> NDArray[np.int64] | None:
        """Return the first timestep of each sequence in its recording; None: all begin at 0."""
        starts = get_axis_starts(self._base, axis)
        return starts if starts is None or self._numbers is None else starts[self._numbers]


def link_axes(store: Store, linked_axes: Mapping[str, Axis]) -> View:
    """Return the view of a store with clocks, axis -> clock, which add to or replace its own."""
    linked = {**get_linked_axes(store), **linked_axes}
    if not isinstance(store, View):
        return View(store, linked_axes=linked)
    numbers = None if store.has_all_sequences else store.numbers
    return View(store.base, numbers, store.measured_transform, store.names, store.id_name, linked)


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
        numbers = None if store.has_all_sequences else store.numbers
        linked = store.own_linked_axes
        return View(store.base, numbers, None, store.names, store.id_name, linked)
    return store


def with_transform(store: Store, measured_transform: MeasuredTransform) -> View:
    """Return a view of all sequences of a store, with a transform in place of any it has."""
    if isinstance(store, View):
        return View(
            store.base, store.numbers, measured_transform, store.names, store.id_name,
            store.own_linked_axes,
        )  # fmt: skip
    return View(store, np.arange(len(store), dtype=np.int64), measured_transform)


def take(store: Store, numbers: ArrayLike) -> View:
    """Return the view of sequences by index, in the order given; see ``SequenceStore.take``.

    Examples:
        >>> from seqdata.storage.memory import MemoryStore
        >>> take(MemoryStore.from_sequences([[1], [2, 2], [3, 3, 3]]), [2, 0, 0]).lengths.tolist()
        [3, 1, 1]
    """
    return _select(store, check_numbers(numbers, len(store)))


def _select(store: Store, numbers: NDArray[np.int64]) -> View:
    if isinstance(store, View):
        transform = store.measured_transform
        if transform is not None:
            transform = replace(transform, lengths=transform.lengths[numbers])
        chosen = numbers if store.has_all_sequences else store.numbers[numbers]
        own = (store.names, store.id_name, store.own_linked_axes)
        return View(store.base, chosen, transform, *own)
    _check_selectable(store)
    return View(store, numbers)


def where(store: Store, mask: ArrayLike | Predicate) -> View:
    """Return the view of the sequences where ``mask`` is True; see ``SequenceStore.where``.

    Examples:
        >>> from seqdata.storage.memory import MemoryStore
        >>> store = MemoryStore.from_sequences([[1], [2, 2], [3, 3, 3]])
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
            "but this selects from all of them. Select from `store.parts[name]` before mixing them"
        )


def _select_fields(caller: str, store: Store, names: NameMap) -> View:
    renamed = names.get(ID_FIELD, ID_FIELD)
    id_name = None if renamed == ID_FIELD else renamed
    if not isinstance(store, View):
        _check_selectable(store)
        if id_name is not None:
            check_id_field(store, id_name)
        return View(store, names=names, id_name=id_name)
    if store.measured_transform is not None:
        remedy = ", or pass `fields` to the Loader" if caller == "select" else ""
        raise ConfigError(
            f"{caller}: a view that carries a transform must keep its fields, which the transform "
            f"takes. Call `{caller}` before `measure_lengths`{remedy}"
        )
    if id_name is not None:
        check_id_field(store, id_name)
        id_name = store.base_name(id_name)
    names = {name: store.base_name(old) for name, old in names.items()}
    numbers = None if store.has_all_sequences else store.numbers
    id_name = id_name or store.id_name
    return View(store.base, numbers, None, names, id_name, store.own_linked_axes)


def with_ids(store: Store, name: str) -> View:
    """Return a view of a store in which a field names the sequences; the field remains.

    Args:
        store: Any store.
        name: A field of strings or integers, one per sequence. A field ``id`` of something else is
            dropped, with a warning.

    Raises:
        ConfigError: If there is no such field, or it does not hold one string or integer per
            sequence.
        DecodeError: If two sequences have the same value.
    """
    check_id_field(store, name)
    shown: dict[str, str] | None = None
    if ID_FIELD in store.fields and name != ID_FIELD:
        warn(
            f"{format_title(store)}: field {ID_FIELD!r} is dropped: sequences are named by "
            f"{name!r}. Rename the field to keep it",
        )
        shown = {each: each for each in store.fields if each != ID_FIELD}
    view = View(store) if not isinstance(store, View) else store
    names = view.names if shown is None else {each: view.base_name(each) for each in shown}
    numbers = None if view.has_all_sequences else view.numbers
    return View(
        view.base, numbers, view.measured_transform, names, view.base_name(name),
        view.own_linked_axes,
    )  # fmt: skip


def locate_sequence(store: Store, number: int) -> DataLocation:
    """Return the location of a base sequence, for an error, with the details the store knows."""
    base = store.base if isinstance(store, View) else store
    if isinstance(base, SupportsLocation):
        return base.locate(number)
    return DataLocation(dataset=format_title(base), sequence=number)
