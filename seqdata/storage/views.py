"""Views: stores that select from another store. Nothing is copied but numbers.

Views of views compose to one array of numbers over the base. A view may carry a transform and the
lengths that were measured of its results; views of it carry them on. Place in the flow: between a
store and the index that is planned over. Reads: numbers, ids. Makes: stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError
from seqdata.protocols import Field, Store, Transform
from seqdata.storage.places import Place, Placing
from seqdata.storage.schema import default_axis


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A transform that a view carries; whoever plays the view applies it.

    Attributes:
        transform: Changes lengths along one axis.
        axis: That axis.
        lengths: Integers (sequences,), timesteps of its results, for each sequence of the view.
    """

    transform: Transform
    axis: str
    lengths: NDArray[Any]


class View:
    """A store that selects sequences of a base store. Made by the functions below.

    Args:
        base: A store that is no view.
        numbers: int64 (sequences,), the base's numbers; repeats allowed.
        carried: A transform; the view's lengths along its axis are those of its results.
    """

    __slots__ = ("_base", "_carried", "_fingerprint", "_lengths_of", "_numbers")

    def __init__(
        self, base: Store, numbers: NDArray[np.int64], carried: Carried | None = None
    ) -> None:
        self._base = base
        self._numbers = numbers
        self._carried = carried
        self._lengths_of = _Gathered(base.lengths_of, numbers, carried)
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self._base, self._numbers, self._carried)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"View({len(self)} of {self._base!r})"

    @property
    def base(self) -> Store:
        """The store that is selected from."""
        return self._base

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The base's number of each sequence, int64 (sequences,)."""
        return self._numbers

    @property
    def carried(self) -> Carried | None:
        """The transform that is applied by whoever plays the view; None: there is none."""
        return self._carried

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._base.fields

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
        """Digest of the base and of the numbers (32 hex digits)."""
        if self._fingerprint is None:
            made = hashlib.sha256(self._base.fingerprint.encode())
            made.update(np.ascontiguousarray(self._numbers, dtype="<i8").data)
            if self._carried is not None:
                made.update(self._carried.axis.encode())
                made.update(np.ascontiguousarray(self._carried.lengths, dtype="<i8").data)
            self._fingerprint = made.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Give the ids of *base* sequences, the numbers that ``batch.ids`` holds."""
        return self._base.keys(numbers)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translate this view's numbers to the base store's.

        Raises:
            ConfigError: If there is no such sequence.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        if len(numbers) and int(numbers.view(np.uint64).max()) >= len(self._numbers):
            raise ConfigError(
                f"view: no sequence {_outside(numbers, len(self))}, must be in [0, {len(self)}); "
                "was the plan made for other data?"
            )
        return self._numbers[numbers]

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
        return self._base.read(spans, fields, axis=axis)

    def take(self, numbers: ArrayLike) -> View:
        """Give the view of sequences by number, in this order; repeats allowed."""
        return take(self, numbers)

    def where(self, mask: ArrayLike) -> View:
        """Give the view of the sequences where ``mask`` is True."""
        return where(self, mask)


class _Gathered(Mapping[str, NDArray[Any]]):
    """Axis -> lengths of selected sequences, gathered at first use."""

    __slots__ = ("_axes", "_base", "_made", "_numbers")

    def __init__(
        self,
        base: Mapping[str, NDArray[Any]],
        numbers: NDArray[np.int64],
        carried: Carried | None,
    ) -> None:
        self._base = base
        self._numbers = numbers
        self._made = {} if carried is None else {carried.axis: carried.lengths}
        self._axes = tuple(dict.fromkeys((*base, *self._made)))

    def __getitem__(self, axis: str) -> NDArray[Any]:
        if axis not in self._made:
            self._made[axis] = self._base[axis][self._numbers]
        return self._made[axis]

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)


def carried_of(store: Store) -> Carried | None:
    """Give the transform that a store carries; None: it carries none."""
    return store.carried if isinstance(store, View) else None


def stored_of(store: Store) -> Store:
    """Give the same sequences as they lie, without the transform that a view of them carries."""
    return View(store.base, store.numbers) if isinstance(store, View) else store


def carrying(store: Store, carried: Carried) -> View:
    """Give the view of all sequences of a store that carries a transform."""
    if isinstance(store, View):
        return View(store.base, store.numbers, carried)
    return View(store, np.arange(len(store), dtype=np.int64), carried)


def _outside(numbers: NDArray[np.int64], count: int) -> int:
    return int(numbers[(numbers < 0) | (numbers >= count)][0])


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
    wanted = np.asarray(numbers)
    if wanted.ndim != 1 or (wanted.dtype.kind not in "iu" and wanted.size):
        raise ConfigError(
            f"take: `numbers` are {wanted.dtype} of {wanted.ndim} dimensions, must be integers in "
            "one dimension; for True and False use `where`"
        )
    wanted = wanted.astype(np.int64)
    if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(store):
        raise ConfigError(
            f"take: no sequence {_outside(wanted, len(store))}, must be in [0, {len(store)}); "
            "choose others"
        )
    return _selected(store, wanted)


def _selected(store: Store, wanted: NDArray[np.int64]) -> View:
    if isinstance(store, View):
        carried = store.carried
        if carried is not None:
            carried = replace(carried, lengths=carried.lengths[wanted])
        return View(store.base, store.numbers[wanted], carried)
    return View(store, wanted)


def where(store: Store, mask: ArrayLike) -> View:
    """Give the view of the sequences where ``mask`` is True, in the store's order.

    Args:
        store: Any store.
        mask: bool (sequences,).

    Raises:
        ConfigError: If it is not one bool per sequence.

    Examples:
        >>> from seqdata.storage.memory import MemoryStore
        >>> store = MemoryStore.of([[1], [2, 2], [3, 3, 3]])
        >>> len(where(store, store.lengths < 3))
        2
    """
    chosen = np.asarray(mask)
    if chosen.dtype != np.bool_ or chosen.shape != (len(store),):
        raise ConfigError(
            f"where: `mask` is {chosen.dtype} of shape {chosen.shape}, must be bool of "
            f"({len(store)},); for numbers use `take`"
        )
    return _selected(store, np.flatnonzero(chosen))


def place_of(store: Store, number: int) -> Place:
    """Give the place of a base sequence, for an error, as far as the store knows it."""
    base = store.base if isinstance(store, View) else store
    if isinstance(base, Placing):
        return base.place(number)
    return Place(dataset=str(base), sequence=number)
