"""Linked axes of stores: which they are, and the spans of all of them that go with those of one.

Place in the flow: spans of the planned axis -> spans of each other axis, before anything is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import get_axis_starts, get_linked_axes
from seqdata.errors import ConfigError, warn
from seqdata.index import DEFAULT_AXIS
from seqdata.linked_axes import Axis, Link, as_axis
from seqdata.protocols import Field, Store
from seqdata.storage.fields import make_unknown_name_error

Clocks = Mapping[str, Any]
"""Axis or field -> its rate, or its ``Axis``."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkedLengths:
    """One axis that is linked to the planned one.

    Attributes:
        link: Planned boundary -> boundary of this axis.
        lengths: Integers (sequences,), its timesteps.
        starts: int64 (sequences,), its first timestep in the whole recording; None: all are 0.
    """

    link: Link
    lengths: NDArray[Any]
    starts: NDArray[np.int64] | None

    def locate(self, bounds: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the boundaries of this axis that are nearest to planned ones, int64 (n, k).

        Args:
            bounds: int64 (n, k), boundaries of the planned axis in whole recordings.
            numbers: int64 (n,), indices of sequences; results count from their first timesteps,
                and may lie outside of them.
        """
        found = self.link.positions(bounds)
        return found if self.starts is None else found - self.starts[numbers][:, None]


@dataclass(frozen=True, slots=True, eq=False)
class AxisLinker:
    """The spans of linked axes that go with spans of the planned one.

    Attributes:
        axis: The planned axis.
        lengths: Integers (sequences,), its timesteps.
        starts: int64 (sequences,), its first timestep in the whole recording; None: all are 0.
        targets: The other axes.
        is_tiled: Whether spans cover sequences: the first begins, and the last ends, with every
            axis, so that no timestep is lost. Otherwise spans are windows, each of its own time.
        shift: Planned timesteps at the end of each sequence that are targets only.
    """

    axis: str
    lengths: NDArray[Any]
    starts: NDArray[np.int64] | None
    targets: Mapping[str, LinkedLengths]
    is_tiled: bool
    shift: int = 0

    @classmethod
    def from_store(cls, store: Store, axis: str, *, is_tiled: bool, shift: int = 0) -> Self | None:
        """Return the linker of a store's axes; None if the planned one is not linked.

        Raises:
            ConfigError: If two rates have no simple ratio.
        """
        linked, lengths_of = get_linked_axes(store), store.lengths_of
        if axis not in linked:
            return None
        targets = {
            name: LinkedLengths(
                Link.between(linked[axis], clock), lengths_of[name], get_axis_starts(store, name)
            )
            for name, clock in linked.items()
            if name != axis and name in lengths_of
        }
        starts = get_axis_starts(store, axis)
        return cls(axis, lengths_of[axis], starts, targets, is_tiled, shift) if targets else None

    def follow(
        self, spans: NDArray[np.int64], names: Any = None, *, horizon: int = 0
    ) -> dict[str, NDArray[np.int64]]:
        """Return linked axis -> spans, int64 (n, 3), that cover the same times as the given ones.

        Args:
            spans: int64 (n, 3), spans of the planned axis, without shift and horizon.
            names: Axes that are needed; None: all linked ones.
            horizon: Timesteps after each span that belong to it.
        """
        numbers, bounds = spans[:, 0], spans[:, 1:]
        if horizon:
            bounds = bounds + np.array([0, horizon])
        absolute = bounds if self.starts is None else bounds + self.starts[numbers][:, None]
        is_empty = bounds[:, 0] >= bounds[:, 1]
        is_first = is_last = is_empty
        if self.is_tiled:
            is_first = bounds[:, 0] == 0
            is_last = bounds[:, 1] + self.shift >= self.lengths[numbers]
        found: dict[str, NDArray[np.int64]] = {}
        for name in self.targets if names is None else names:
            target = self.targets[name]
            lengths = target.lengths[numbers].astype(np.int64)
            own = np.empty_like(spans)
            own[:, 0] = numbers
            np.clip(target.locate(absolute, numbers), 0, lengths[:, None], out=own[:, 1:])
            if self.is_tiled:
                own[is_first, 1] = 0
                np.copyto(own[:, 2], lengths, where=is_last)
            np.copyto(own[:, 2], own[:, 1], where=is_empty)
            found[name] = own
        return found

    def measure_gaps(self, name: str) -> NDArray[np.int64]:
        """Return the larger distance of an axis from the planned one, at begin or end.

        int64 (sequences,), in timesteps of the planned axis; 0 for sequences without such.
        """
        target = self.targets[name]
        lengths = self.lengths.astype(np.int64)
        numbers = np.arange(len(lengths))
        bounds = np.stack([np.zeros_like(lengths), lengths], axis=1)
        absolute = bounds if self.starts is None else bounds + self.starts[:, None]
        own = target.locate(absolute, numbers)
        theirs = np.maximum(np.abs(own[:, 0]), np.abs(target.lengths.astype(np.int64) - own[:, 1]))
        gaps = theirs * target.link.down // target.link.up
        return np.where(lengths > 0, gaps, 0)


def split_clocks(
    rates: Clocks | None, axes: Mapping[str, Any] | None
) -> tuple[dict[str, Axis], dict[str, str | None] | None]:
    """Return the clocks that a user names, and the other axes: field -> axis, or None.

    Args:
        rates: Axis or field -> rate.
        axes: Field -> its axis, a name or None; or axis or field -> ``Axis``.

    Raises:
        ConfigError: If a value is invalid, or two clocks are given for one name.
    """
    for argument, given in (("rates", rates), ("axes", axes)):
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(
                f"`{argument}` must be a dict by field or axis, but is {given!r:.100}. Pass "
                "e.g. {'ecg': 500}"
            )
    clocks = {name: as_axis(value, f"`rates[{name!r}]`") for name, value in (rates or {}).items()}
    names: dict[str, str | None] = {}
    for name, value in (axes or {}).items():
        if value is None or isinstance(value, str):
            names[name] = value
            continue
        clock = as_axis(value, f"`axes[{name!r}]`")
        if clocks.setdefault(name, clock) != clock:
            raise ConfigError(
                f"`rates` and `axes` must agree, but {name!r} has {clocks[name]} and {clock}. "
                "Leave one out"
            )
    return clocks, names if names or axes == {} else None


def name_axes(
    clocks: Mapping[str, Axis], axes: Mapping[str, str | None] | None
) -> dict[str, str | None] | None:
    """Return field -> axis of data in memory, where every field with a clock has an axis.

    The first of these fields runs along ``time`` if no field is named to and ``time`` has no clock;
    each other one runs along an axis of its own name.

    Args:
        clocks: Axis or field -> clock.
        axes: Field -> axis, as the user says.
    """
    named = dict(axes or {})
    known = {DEFAULT_AXIS, *filter(None, named.values())}
    for number, name in enumerate(clocks):
        if name not in named and name not in known:
            is_free = not number and DEFAULT_AXIS not in named.values()
            named[name] = DEFAULT_AXIS if is_free and DEFAULT_AXIS not in clocks else name
    return named or (None if axes is None else {})


def resolve_clocks(
    fields: Mapping[str, Field], axes: Collection[str], clocks: Mapping[str, Axis]
) -> dict[str, Axis]:
    """Return axis -> clock.

    Args:
        fields: Fields of the data.
        axes: Names of their axes.
        clocks: Field or axis -> clock.

    Raises:
        ConfigError: If there is no such field or axis, an axis has two clocks, or two rates have no
            simple ratio.
    """
    found: dict[str, Axis] = {}
    said: dict[str, str] = {}
    for name, clock in clocks.items():
        axis = fields[name].axis if name in fields else name
        if axis is None:
            raise ConfigError(
                f"rates: field {name!r} must run along an axis, but has one value per sequence. "
                "Leave it out"
            )
        if axis not in axes:
            raise make_unknown_name_error("rates", "field or axis", name, {*fields, *axes})
        if found.setdefault(axis, clock) != clock:
            raise ConfigError(
                f"rates: fields of one axis must have the same clock, but {said[axis]!r} "
                f"has {found[axis]} and {name!r} {clock} along {axis!r}. Give one of them an "
                "axis of "
                f"its own, e.g. axes={{{name!r}: {name!r}}} where the data is opened or written"
            )
        said.setdefault(axis, name)
    for source in found.values():
        for target in found.values():
            Link.between(source, target)  # raises
    return found


def keep_clocks(store: Store) -> dict[str, Axis]:
    """Return axis -> clock of sequences to write, for axes with one clock for all sequences.

    Pieces of recordings, such as parts of a split in time, may begin at another fraction of a
    timestep each; a warning then says that their clocks are dropped.
    """
    linked = dict(get_linked_axes(store))
    begins = {axis: get_axis_starts(store, axis) for axis in linked}
    if len(linked) < 2 or all(starts is None for starts in begins.values()):
        return linked
    first, *others = linked
    for axis in others:
        ratio, same = linked[axis].rate / linked[first].rate, linked[axis].offset
        own, due = (
            np.zeros(len(store), dtype=object) if starts is None else starts.astype(object)
            for starts in (begins[axis], begins[first])
        )
        is_exact = own * ratio.denominator == due * ratio.numerator
        if same != linked[first].offset or not is_exact.all():
            warn(
                "store: sampling rates are dropped: the pieces of recordings do not all begin at "
                f"a timestep of both {first!r} and {axis!r}. Write whole recordings and split "
                "them when they are read, or pass `rates`",
            )
            return {}
    return linked
