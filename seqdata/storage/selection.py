"""The checked selections of views: numbers, masks and names; and the lengths of a view."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.linked_axes import Axis
from seqdata.protocols import Field, Store, Transform
from seqdata.storage.fields import list_axes, make_unknown_name_error

NameMap = Mapping[str, str]
"""Name in a view -> name in its base, of the visible fields."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredTransform:
    """A transform that a view carries; loaders of the view apply it.

    Attributes:
        transform: Changes lengths along one axis.
        axis: That axis.
        lengths: Integers (sequences,), timesteps of its result for each sequence of the view.
        make_rows: Function of a view that carries the transform, the transform, and the name of
            the field of ids; returns the results by index and their ``axes``, to be written.
    """

    transform: Transform
    axis: str
    lengths: NDArray[Any]
    make_rows: Callable[[Store, MeasuredTransform, str], Any]


class SelectedLengths(Mapping[str, NDArray[Any]]):
    """Axis -> lengths of selected sequences, gathered at first use.

    Args:
        base: Lengths of the base.
        fields: Only the axes of these fields are shown, if they have any.
        numbers: int64 (sequences,), indices in the base; None: all sequences, in its order.
        measured_transform: A transform whose lengths replace those of the base.
    """

    __slots__ = ("_axes", "_base", "_lengths", "_numbers")

    def __init__(
        self,
        base: Mapping[str, NDArray[Any]],
        fields: Mapping[str, Field],
        numbers: NDArray[np.int64] | None,
        measured_transform: MeasuredTransform | None,
    ) -> None:
        self._base = base
        self._numbers = numbers
        self._lengths = (
            {}
            if measured_transform is None
            else {measured_transform.axis: measured_transform.lengths}
        )
        field_axes = list_axes(fields)
        base_axes = [axis for axis in base if axis in field_axes or not field_axes]
        self._axes = tuple(dict.fromkeys((*base_axes, *self._lengths)))

    def __getitem__(self, axis: str) -> NDArray[Any]:
        if axis not in self._lengths:
            lengths = self._base[axis]
            self._lengths[axis] = lengths if self._numbers is None else lengths[self._numbers]
        return self._lengths[axis]

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)


def select_names(fields: Mapping[str, Field], names: tuple[Any, ...]) -> dict[str, str]:
    """Return the names of some fields of a store, as names of a view of it.

    Raises:
        ConfigError: If there is no such field, or no name is given.
    """
    if not names:
        raise ConfigError(
            "select: at least one field must be named, but none is. Write select('x', 'y')"
        )
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"select: a field must be named by a string, but is {name!r}. Write "
                "select('x', 'y'); sequences are chosen with `take` and `where`"
            )
        if name not in fields:
            raise make_unknown_name_error("select", "field", name, fields)
    return {name: name for name in names}


def rename_fields(fields: Mapping[str, Field], names: Any) -> dict[str, str]:
    """Return the names of all fields of a store, some renamed, as names of a view of it.

    Args:
        fields: Fields of the store.
        names: Name -> new name.

    Raises:
        ConfigError: If ``names`` is not a dict of fields and non-empty strings, or two fields would
            have the same name.
        UnknownNameError: If there is no such field.
    """
    if not isinstance(names, Mapping):
        raise ConfigError(f"rename: names must be {{'old': 'new'}}, but are {names!r}")
    for old, new in names.items():
        if old not in fields:
            raise make_unknown_name_error("rename", "field", old, fields)
        if not isinstance(new, str) or not new:
            raise ConfigError(
                f"rename: the new name of {old!r} must be a non-empty string, but is {new!r}"
            )
    new_names = {names.get(name, name): name for name in fields}
    if len(new_names) < len(fields):
        after = [names.get(name, name) for name in fields]
        repeated = next(name for name in after if after.count(name) > 1)
        raise ConfigError(
            f"rename: every field must have a name of its own, but two would be {repeated!r}. "
            "Choose another name, or leave one of them out with `select`"
        )
    return new_names


def check_numbers(numbers: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return numbers of sequences, int64 (n,), if all of them are in ``[0, count)``.

    Raises:
        ConfigError: If they are not integers in one dimension, or there is no such sequence.
    """
    number_array = as_numbers("take", numbers, "Pass a list such as [0, 2]; for a mask use `where`")
    if len(number_array) and not 0 <= number_array.min() <= number_array.max() < count:
        raise ConfigError(
            f"take: `numbers` must be in [0, {count}), but hold "
            f"{find_outside(number_array, count)}. Choose others"
        )
    return number_array


def as_numbers(
    caller: str, numbers: ArrayLike, remedy: str = "Pass a list of them, such as [3]"
) -> NDArray[np.int64]:
    """Return numbers of sequences as an array, int64 (n,).

    Args:
        caller: Name of the function that takes them, for messages.
        numbers: Indices as given by the user.
        remedy: Remedy, for the message.

    Raises:
        ConfigError: If they are not integers in one dimension.
    """
    needed = f"{caller}: `numbers` must be integers in one dimension"
    number_array = _to_array(needed, numbers)
    if number_array.ndim != 1 or (number_array.dtype.kind not in "iu" and number_array.size):
        raise ConfigError(
            f"{needed}, but are {number_array.dtype} of {number_array.ndim} dimensions. {remedy}"
        )
    return number_array.astype(np.int64, copy=False)


def check_planned(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the numbers of sequences of a plan, int64 (n,), if all are in ``[0, count)``.

    Raises:
        ConfigError: If there is no such sequence.
    """
    if len(numbers) and int(numbers.view(np.uint64).max()) >= count:  # one pass: -1 is large
        remedy = "Plan over this view's index: the plan is one of other data"
        found = str(find_outside(numbers, count))
        raise ConfigError(
            must_be("view: the number of a sequence", f"in [0, {count})", found, remedy)
        )
    return numbers


def check_number(number: Any, count: int) -> int:
    """Return the number of one sequence, in ``[0, count)``; a negative one counts from the end.

    Raises:
        ConfigError: If it is not an integer.
        IndexError: If there is no such sequence.
    """
    if not isinstance(number, int | np.integer) or isinstance(number, bool):
        raise ConfigError(
            f"store[...]: a sequence must be given by its index or id, but is {number!r}. Use "
            "`take` for several, `where` to choose by content, and `select` for fields"
        )
    if not -count <= number < count:
        raise IndexError(f"store: the index must be in [{-count}, {count}), but is {number}")
    return int(number) % count


def check_mask(mask: ArrayLike, count: int) -> NDArray[np.bool_]:
    """Return a mask, bool (count,).

    Raises:
        ConfigError: If it is not one bool per sequence.
    """
    chosen = _to_array(f"where: `mask` must be bool of shape ({count},)", mask)
    if chosen.dtype != np.bool_ or chosen.shape != (count,):
        is_bool = chosen.dtype == np.bool_
        remedy = "Pass one bool per sequence" if is_bool else "For numbers use `take`"
        raise ConfigError(
            f"where: `mask` must be bool of shape ({count},), but is {chosen.dtype} of shape "
            f"{chosen.shape}. {remedy}"
        )
    return chosen


def _to_array(needed: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{needed}, but are lists of different lengths. Pass one array"
        ) from error


def find_outside(numbers: NDArray[np.int64], count: int) -> int:
    """Return the first number that is not in ``[0, count)``."""
    return int(numbers[(numbers < 0) | (numbers >= count)][0])


def digest_selection(
    base: str,
    numbers: NDArray[np.int64] | None,
    names: NameMap | None,
    measured_transform: MeasuredTransform | None,
    id_name: str | None = None,
    linked_axes: Mapping[str, Axis] | None = None,
) -> str:
    """Return the digest of a selection (32 hex digits).

    Args:
        base: The fingerprint of the base.
        numbers: int64 (sequences,), the base's numbers; None if they are not selected.
        names: The fields; None if they are not selected.
        measured_transform: A transform that is carried.
        id_name: The field of ids; None: ids are those of the base.
        linked_axes: Clocks of axes that replace those of the base; None: the base's.
    """
    digest = hashlib.sha256(base.encode())
    if numbers is not None:
        digest.update(np.ascontiguousarray(numbers, dtype="<i8").data)
    if names is not None:
        digest.update(f"names:{list(names.items())!r}".encode())
    if measured_transform is not None:
        digest.update(measured_transform.axis.encode())
        digest.update(np.ascontiguousarray(measured_transform.lengths, dtype="<i8").data)
    if id_name is not None:
        digest.update(f"id:{id_name}".encode())
    if linked_axes is not None:
        digest.update(f"axes:{sorted(linked_axes.items())!r}".encode())
    return digest.hexdigest()[:32]
