"""What is read of a store: fields chosen, axis and shift checked once, spans widened per batch.

It also knows the length law of transforms: a transform that keeps lengths is given the spans, one
that changes them whole sequences. Place in the flow: a step's spans -> columns. Reads: a store.
Makes: columns, and the index that is planned over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes, unknown_name
from seqdata.code_digest import code_digest
from seqdata.errors import ConfigError, did_you_mean
from seqdata.index import RUN, LengthMap, SequenceIndex
from seqdata.loading.options import PlayOptions
from seqdata.loading.transforms.declare import (
    axes_of,
    check_transform,
    is_bounded,
    lengths_of,
    name_of,
)
from seqdata.protocols import Store
from seqdata.storage.fields import TEXTS, default_axis
from seqdata.storage.views import carried_of, stored_of

_MOST_NAME, _DIGITS = 120, 16  # of a transform in a state

if TYPE_CHECKING:  # it needs torch, and worker processes do without
    from seqdata.loading.output import Output


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Reads the chosen fields of a store.

    Attributes:
        store: What is read.
        axis: The axis that spans cut.
        plain: Fields that are read as spans say.
        shifted: The field that is read ``shift`` timesteps further; None without a shift. With a
            transform, the field of its results; None for the only ragged one.
        shift: Timesteps between inputs and targets.
        axes: Which field runs along which axis.
        transform: What is applied to the columns; None: nothing.
        change: How the transform changes lengths, as it says; None: it does not say.
        measured: The view whose lengths are those of the results; None: nobody measured.
    """

    store: Store
    axis: str
    plain: tuple[str, ...]
    shifted: str | None
    shift: int
    axes: Axes
    transform: Any = None
    change: LengthMap | None = None
    measured: Store | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out ``change``, which may be no function of a module: the transform says it."""
        fixed = (self.store, self.axis, self.plain, self.shifted, self.shift, self.axes)
        return _again, (*fixed, self.transform, self.measured)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields in ``batch.data``, without a transform."""
        return self.plain if self.shifted is None else (*self.plain, self.shifted, TARGETS)

    @property
    def changes(self) -> bool:
        """Whether the transform changes lengths: it is given whole sequences."""
        return self.change is not None or self.measured is not None

    @property
    def bounded(self) -> bool:
        """Whether planned lengths are only what the transform's results have at most."""
        return self.change is not None and is_bounded(self.transform)

    @property
    def label(self) -> str:
        """The transform's name and a digest of its code; ``none`` without one.

        An object is digested as it is now, and its state may change while it is used.
        """
        if self.transform is None:
            return "none"
        return f"{name_of(self.transform)[-_MOST_NAME:]} ({code_digest(self.transform)[:_DIGITS]})"

    @property
    def advice(self) -> str:
        """What to do where a length is not the planned one."""
        if self.measured is not None:
            return "; measure again (cache=False) if the transform was changed, else"
        if self.change is not None:
            return f" that `.{'max_length' if self.bounded else 'lengths'}` says"
        return ", or say with `.lengths` how it changes them"

    @property
    def made_axes(self) -> dict[str, str | None]:
        """Field -> axis in what the transform gives: as it says, else as stored.

        A text is no array, so an array in its place is a new field.
        """
        texts = [name for name, field in self.store.fields.items() if field.dtype in TEXTS]
        known = {name: axis for name, axis in self.axes.axis_of.items() if name not in texts}
        return known | axes_of(self.transform)

    def index(self) -> SequenceIndex:
        """Give the lengths that are planned over."""
        index = SequenceIndex.of_store(self.measured or self.store)
        if self.change is not None:
            index = index.mapped(self.axis, self._name_of_change(self.change), self.change)
        return index.shifted(self.axis, self.shift) if self.shift else index

    def planned(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the lengths of whole results as they were planned, before a shift, int64 (n,)."""
        store = self.measured or self.store
        lengths: NDArray[np.int64] = store.lengths_of[self.axis][numbers].astype(np.int64)
        return lengths if self.change is None else self.change(lengths)

    def pieces(self, spans: NDArray[np.int64]) -> dict[str, Any]:
        """Read what a transform sees: spans, or whole sequences."""
        if not self.changes:
            return self.store.read(spans, self.plain, axis=self.axis)
        lengths_of = self.store.lengths_of
        along = self.axis if self.axis in lengths_of else default_axis(lengths_of)
        whole = np.zeros_like(spans)
        whole[:, 0] = spans[:, 0]
        whole[:, 2] = lengths_of[along][spans[:, 0]]
        return self.store.read(whole, self.plain, axis=along)

    def widened(self, spans: NDArray[np.int64], horizon: int) -> NDArray[np.int64]:
        """Give spans that go on by the horizon and, where they are not idle, by the shift."""
        wide = spans.copy()
        wide[:, 2] += horizon + np.where(spans[:, 2] > spans[:, 1], self.shift, 0)
        return wide

    def columns(
        self, spans: NDArray[np.int64], *, together: bool, horizon: int = 0
    ) -> dict[str, Any]:
        """Read spans: what is shifted goes on ``shift`` timesteps further.

        Args:
            spans: int64 (n, 3): sequence, start, stop.
            together: Whether inputs and targets are one column, ``shift`` timesteps longer; else
                targets are a column of their own.
            horizon: Timesteps of a window's future, read behind every span.
        """
        if horizon:
            spans = spans + np.array([0, 0, horizon])
        if self.shifted is None:
            return self.store.read(spans, self.plain, axis=self.axis)
        columns = self.store.read(spans, self.plain, axis=self.axis) if self.plain else {}
        further = self.widened(spans, 0)
        if together:
            return columns | self.store.read(further, (self.shifted,), axis=self.axis)
        columns |= self.store.read(spans, (self.shifted,), axis=self.axis)
        further[:, 1] += further[:, 2] - spans[:, 2]
        targets = self.store.read(further, (self.shifted,), axis=self.axis)
        return columns | {TARGETS: targets[self.shifted]}

    def as_they_are(self, spans: NDArray[np.int64]) -> dict[str, Any]:
        """Read spans of a stream, which hold what follows them."""
        names = self.plain if self.shifted is None else (*self.plain, self.shifted)
        return self.store.read(spans, names, axis=self.axis)

    def _name_of_change(self, change: LengthMap) -> str:
        """Name a change of lengths by what it does to the first and last sequences."""
        lengths = self.store.lengths_of[self.axis]
        made = hashlib.sha256()
        for run in (lengths[:RUN], lengths[-RUN:]):
            made.update(change(np.asarray(run, dtype=np.int64)).astype("<i8").tobytes())
        return f"transform={name_of(self.transform)}/{made.hexdigest()[:16]}"


def _again(
    store: Store, axis: str, plain: tuple[str, ...], shifted: str | None, shift: int, axes: Axes,
    transform: Any, measured: Store | None,
) -> Reading:  # fmt: skip
    change = None if transform is None or measured is not None else lengths_of(transform)
    return Reading(store, axis, plain, shifted, shift, axes, transform, change, measured)


def reading_of(store: Store, axis: str, options: PlayOptions, output: Output | None) -> Reading:
    """Choose what is read.

    Args:
        store: Any store; a view that carries a transform brings it.
        axis: The axis of the plan.
        options: Fields, shift and transform.
        output: What is handed out.

    Raises:
        ConfigError: If a field or the axis is not there, the shift cannot be meant, or there are
            two transforms.
    """
    if axis not in store.lengths_of:
        have, hint = ", ".join(store.lengths_of), did_you_mean(axis, store.lengths_of)
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, must be one of {have}; pass `axis` to it"
            f"{'; ' if hint else ''}{hint}"
        )
    carried = carried_of(store)
    if carried is None:
        return _plain_reading(store, axis, options, output)
    if options.transform is not None:
        raise ConfigError(
            f"loader: `transform` is {name_of(options.transform)} but the view carries "
            f"{name_of(carried.transform)}, must be one of them; leave `transform` out"
        )
    if axis != carried.axis:
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, must be {carried.axis!r}, which was "
            f"measured; pass `axis` to it, or measure axis {axis!r}"
        )
    options = replace(options, transform=carried.transform)
    reading = _plain_reading(stored_of(store), axis, options, output)
    return replace(reading, change=None, measured=store)


def whole_reading(store: Store, axis: str, transform: Any) -> Reading:
    """Read whole sequences with all their fields, for a transform that is being measured.

    Raises:
        ConfigError: If the transform is no function.
    """
    reading = _plain_reading(store, axis, PlayOptions(transform=transform), None)
    return replace(reading, measured=store)


def _plain_reading(store: Store, axis: str, options: PlayOptions, output: Output | None) -> Reading:
    wanted, transform = _wanted(store, axis, options, output), options.transform
    for name in wanted:
        if name not in store.fields:
            raise ConfigError(f"loader: `fields` names {unknown_name(name, store.fields)}")
    axis_of = {name: store.fields[name].axis for name in wanted}
    if transform is not None:
        check_transform(transform)
        named, by = _shift_of(options.shift)
        return Reading(
            store, axis, wanted, named, by, Axes(axis, axis_of), transform, lengths_of(transform)
        )
    shifted, shift = _shift(store, axis, options.shift, wanted)
    axes = Axes(axis, axis_of, {} if shifted is None else {shifted: shift})
    plain = tuple(name for name in wanted if name != shifted)
    return Reading(store, axis, plain, shifted, shift, axes)


def _wanted(
    store: Store, axis: str, options: PlayOptions, output: Output | None
) -> tuple[str, ...]:
    if options.fields is not None:
        return tuple(dict.fromkeys(options.fields))
    if output is None or options.transform is not None or options.collator is not None:
        return tuple(store.fields)
    names = set(output.names)
    if options.shift and TARGETS in names:
        ragged = (name for name in store.fields if store.fields[name].axis == axis)
        names.update(options.shift if isinstance(options.shift, Mapping) else ragged)
    output.check((*store.fields, TARGETS) if options.shift else store.fields)
    return tuple(name for name in store.fields if name in names)


def _shift(
    store: Store, axis: str, shift: int | Mapping[str, int], wanted: tuple[str, ...]
) -> tuple[str | None, int]:
    ragged = [name for name in wanted if store.fields[name].axis == axis]
    name, by = _shift_of(shift)
    if name is not None and name not in ragged:
        raise ConfigError(f"loader: `shift` names {unknown_name(name, tuple(ragged))}")
    if name is None and by and len(ragged) != 1:
        raise ConfigError(
            f"loader: `shift` is {shift!r} with {len(ragged)} fields on axis {axis!r} "
            f"({', '.join(ragged) or 'none'}), must say which; write shift={{'tokens': 1}}"
        )
    if by and TARGETS in wanted:
        raise ConfigError(
            "loader: the data has a field 'targets', must not have one with `shift`; leave it out "
            "of `fields`"
        )
    return (name or ragged[0], by) if by else (None, 0)


def _shift_of(shift: int | Mapping[str, int]) -> tuple[str | None, int]:
    """Give the field that is named, if one is, and the timesteps."""
    name, by = None, shift
    if isinstance(shift, Mapping):
        if len(shift) != 1:
            raise ConfigError(
                f"loader: `shift` is {dict(shift)!r}, must name one field; it gives `targets`"
            )
        name, by = next(iter(shift.items()))
    if not isinstance(by, int) or by < 0:
        raise ConfigError(f"loader: `shift` is {by!r}, must be a whole number of timesteps")
    return name, by
