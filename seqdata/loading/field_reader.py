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

from seqdata.batch.axes import TARGETS, Axes, format_unknown_name
from seqdata.code_digest import code_digest
from seqdata.errors import ConfigError, did_you_mean
from seqdata.index import SCAN_CHUNK, LengthMap, SequenceIndex
from seqdata.loading.options import EngineOptions
from seqdata.loading.transforms.declare import (
    check_transform,
    declared_axes,
    is_bounded,
    length_map_for,
    qualified_name,
)
from seqdata.protocols import Store
from seqdata.storage.fields import TEXT_DTYPES, default_axis
from seqdata.storage.views import get_measured_transform, without_transform

_MAX_NAME, _DIGITS = 120, 16  # of a transform in a state

if TYPE_CHECKING:  # it needs torch, and worker processes do without
    from seqdata.loading.output import Output


@dataclass(frozen=True, slots=True, eq=False)
class FieldReader:
    """Reads the chosen fields of a store.

    Attributes:
        store: What is read.
        axis: The axis that spans cut.
        unshifted_fields: Fields that are read as spans say.
        shifted_field: The field that is read ``shift`` timesteps further; None without a shift.
            With a transform, the field of its results; None for the only ragged one.
        shift: Timesteps between inputs and targets.
        axes: Which field runs along which axis.
        transform: What is applied to the columns; None: nothing.
        length_map: How the transform changes lengths, as it says; None: it does not say.
        measured_view: The view whose lengths are those of the results; None: nobody measured.
    """

    store: Store
    axis: str
    unshifted_fields: tuple[str, ...]
    shifted_field: str | None
    shift: int
    axes: Axes
    transform: Any = None
    length_map: LengthMap | None = None
    measured_view: Store | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out ``length_map``, which may be no function of a module: the transform says it."""
        fixed = (
            self.store,
            self.axis,
            self.unshifted_fields,
            self.shifted_field,
            self.shift,
            self.axes,
        )
        return _rebuild_reader, (*fixed, self.transform, self.measured_view)

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields in ``batch.data``, without a transform."""
        return (
            self.unshifted_fields
            if self.shifted_field is None
            else (*self.unshifted_fields, self.shifted_field, TARGETS)
        )

    @property
    def has_changed_lengths(self) -> bool:
        """Whether the transform changes lengths: it is given whole sequences."""
        return self.length_map is not None or self.measured_view is not None

    @property
    def has_bounded_lengths(self) -> bool:
        """Whether planned lengths are only what the transform's results have at most."""
        return self.length_map is not None and is_bounded(self.transform)

    @property
    def transform_label(self) -> str:
        """The transform's name and a digest of its code; ``none`` without one.

        An object is digested as it is now, and its state may change while it is used.
        """
        if self.transform is None:
            return "none"
        return (
            f"{qualified_name(self.transform)[-_MAX_NAME:]} "
            f"({code_digest(self.transform)[:_DIGITS]})"
        )

    @property
    def length_advice(self) -> str:
        """What to do where a length is not the planned one."""
        if self.measured_view is not None:
            return "; measure again (cache=False) if the transform was changed, else"
        if self.length_map is not None:
            return f" that `.{'max_length' if self.has_bounded_lengths else 'lengths'}` says"
        return ", or say with `.lengths` how it changes them"

    @property
    def result_axes(self) -> dict[str, str | None]:
        """Field -> axis in what the transform gives: as it says, else as stored.

        A text is no array, so an array in its place is a new field.
        """
        texts = [name for name, field in self.store.fields.items() if field.dtype in TEXT_DTYPES]
        stored_axes = {name: axis for name, axis in self.axes.axis_of.items() if name not in texts}
        return stored_axes | declared_axes(self.transform)

    def build_index(self) -> SequenceIndex:
        """Return the lengths that are planned over."""
        index = SequenceIndex.of_store(self.measured_view or self.store)
        if self.length_map is not None:
            index = index.mapped(
                self.axis, self._describe_length_map(self.length_map), self.length_map
            )
        return index.shifted(self.axis, self.shift) if self.shift else index

    def compute_planned_lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths of whole results as they were planned, before a shift, int64 (n,)."""
        store = self.measured_view or self.store
        lengths: NDArray[np.int64] = store.lengths_of[self.axis][numbers].astype(np.int64)
        return lengths if self.length_map is None else self.length_map(lengths)

    def read_inputs(self, spans: NDArray[np.int64]) -> dict[str, Any]:
        """Read what a transform sees: spans, or whole sequences."""
        if not self.has_changed_lengths:
            return self.store.read(spans, self.unshifted_fields, axis=self.axis)
        lengths_of = self.store.lengths_of
        full_axis = self.axis if self.axis in lengths_of else default_axis(lengths_of)
        full_spans = np.zeros_like(spans)
        full_spans[:, 0] = spans[:, 0]
        full_spans[:, 2] = lengths_of[full_axis][spans[:, 0]]
        return self.store.read(full_spans, self.unshifted_fields, axis=full_axis)

    def widen(self, spans: NDArray[np.int64], horizon: int) -> NDArray[np.int64]:
        """Return spans that go on by the horizon and, where they are not idle, by the shift."""
        widened = spans.copy()
        widened[:, 2] += horizon + np.where(spans[:, 2] > spans[:, 1], self.shift, 0)
        return widened

    def read_columns(
        self, spans: NDArray[np.int64], *, joint_targets: bool, horizon: int = 0
    ) -> dict[str, Any]:
        """Read spans: what is shifted goes on ``shift`` timesteps further.

        Args:
            spans: int64 (n, 3): sequence, start, stop.
            joint_targets: Whether inputs and targets are one column, ``shift`` timesteps longer;
                else targets are a column of their own.
            horizon: Timesteps of a window's future, read behind every span.
        """
        if horizon:
            spans = spans + np.array([0, 0, horizon])
        if self.shifted_field is None:
            return self.store.read(spans, self.unshifted_fields, axis=self.axis)
        columns = (
            self.store.read(spans, self.unshifted_fields, axis=self.axis)
            if self.unshifted_fields
            else {}
        )
        target_spans = self.widen(spans, 0)
        if joint_targets:
            return columns | self.store.read(target_spans, (self.shifted_field,), axis=self.axis)
        columns |= self.store.read(spans, (self.shifted_field,), axis=self.axis)
        target_spans[:, 1] += target_spans[:, 2] - spans[:, 2]
        targets = self.store.read(target_spans, (self.shifted_field,), axis=self.axis)
        return columns | {TARGETS: targets[self.shifted_field]}

    def read_stream(self, spans: NDArray[np.int64]) -> dict[str, Any]:
        """Read spans of a stream, which hold what follows them."""
        names = (
            self.unshifted_fields
            if self.shifted_field is None
            else (*self.unshifted_fields, self.shifted_field)
        )
        return self.store.read(spans, names, axis=self.axis)

    def _describe_length_map(self, length_map: LengthMap) -> str:
        """Name a change of lengths by what it does to the first and last sequences."""
        lengths = self.store.lengths_of[self.axis]
        digest = hashlib.sha256()
        for chunk_lengths in (lengths[:SCAN_CHUNK], lengths[-SCAN_CHUNK:]):
            digest.update(
                length_map(np.asarray(chunk_lengths, dtype=np.int64)).astype("<i8").tobytes()
            )
        return f"transform={qualified_name(self.transform)}/{digest.hexdigest()[:16]}"


def _rebuild_reader(
    store: Store,
    axis: str,
    unshifted_fields: tuple[str, ...],
    shifted_field: str | None,
    shift: int,
    axes: Axes,
    transform: Any,
    measured_view: Store | None,
) -> FieldReader:
    length_map = (
        None if transform is None or measured_view is not None else length_map_for(transform)
    )
    return FieldReader(
        store,
        axis,
        unshifted_fields,
        shifted_field,
        shift,
        axes,
        transform,
        length_map,
        measured_view,
    )


def make_reader(
    store: Store, axis: str, options: EngineOptions, output: Output | None
) -> FieldReader:
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
        axes, hint = ", ".join(store.lengths_of), did_you_mean(axis, store.lengths_of)
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, must be one of {axes}; pass `axis` to it"
            f"{'; ' if hint else ''}{hint}"
        )
    measured_transform = get_measured_transform(store)
    if measured_transform is None:
        return _make_plain_reader(store, axis, options, output)
    if options.transform is not None:
        raise ConfigError(
            f"loader: `transform` is {qualified_name(options.transform)} but the view carries "
            f"{qualified_name(measured_transform.transform)}, must be one of them; leave "
            "`transform` out"
        )
    if axis != measured_transform.axis:
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, must be {measured_transform.axis!r}, "
            "which was "
            f"measured; pass `axis` to it, or measure axis {axis!r}"
        )
    options = replace(options, transform=measured_transform.transform)
    reader = _make_plain_reader(without_transform(store), axis, options, output)
    return replace(reader, length_map=None, measured_view=store)


def make_full_reader(store: Store, axis: str, transform: Any) -> FieldReader:
    """Read whole sequences with all their fields, for a transform that is being measured.

    Raises:
        ConfigError: If the transform is no function.
    """
    reader = _make_plain_reader(store, axis, EngineOptions(transform=transform), None)
    return replace(reader, measured_view=store)


def _make_plain_reader(
    store: Store, axis: str, options: EngineOptions, output: Output | None
) -> FieldReader:
    field_names, transform = _choose_fields(store, axis, options, output), options.transform
    for name in field_names:
        if name not in store.fields:
            raise ConfigError(f"loader: `fields` names {format_unknown_name(name, store.fields)}")
    axis_of = {name: store.fields[name].axis for name in field_names}
    if transform is not None:
        check_transform(transform)
        shifted_name, timesteps = _parse_shift(options.shift)
        return FieldReader(
            store,
            axis,
            field_names,
            shifted_name,
            timesteps,
            Axes(axis, axis_of),
            transform,
            length_map_for(transform),
        )
    shifted_field, shift = _resolve_shift(store, axis, options.shift, field_names)
    axes = Axes(axis, axis_of, {} if shifted_field is None else {shifted_field: shift})
    unshifted_fields = tuple(name for name in field_names if name != shifted_field)
    return FieldReader(store, axis, unshifted_fields, shifted_field, shift, axes)


def _choose_fields(
    store: Store, axis: str, options: EngineOptions, output: Output | None
) -> tuple[str, ...]:
    if options.fields is not None:
        return tuple(dict.fromkeys(options.fields))
    if output is None or options.transform is not None or options.collator is not None:
        return tuple(store.fields)
    wanted_names = set(output.names)
    if options.shift and TARGETS in wanted_names:
        ragged = (name for name in store.fields if store.fields[name].axis == axis)
        wanted_names.update(options.shift if isinstance(options.shift, Mapping) else ragged)
    output.check((*store.fields, TARGETS) if options.shift else store.fields)
    return tuple(name for name in store.fields if name in wanted_names)


def _resolve_shift(
    store: Store, axis: str, shift: int | Mapping[str, int], field_names: tuple[str, ...]
) -> tuple[str | None, int]:
    ragged = [name for name in field_names if store.fields[name].axis == axis]
    name, timesteps = _parse_shift(shift)
    if name is not None and name not in ragged:
        raise ConfigError(f"loader: `shift` names {format_unknown_name(name, tuple(ragged))}")
    if name is None and timesteps and len(ragged) != 1:
        raise ConfigError(
            f"loader: `shift` is {shift!r} with {len(ragged)} fields on axis {axis!r} "
            f"({', '.join(ragged) or 'none'}), must say which; write shift={{'tokens': 1}}"
        )
    if timesteps and TARGETS in field_names:
        raise ConfigError(
            "loader: the data has a field 'targets', must not have one with `shift`; leave it out "
            "of `fields`"
        )
    return (name or ragged[0], timesteps) if timesteps else (None, 0)


def _parse_shift(shift: int | Mapping[str, int]) -> tuple[str | None, int]:
    """Return the field that is named, if one is, and the timesteps."""
    name, timesteps = None, shift
    if isinstance(shift, Mapping):
        if len(shift) != 1:
            raise ConfigError(
                f"loader: `shift` is {dict(shift)!r}, must name one field; it gives `targets`"
            )
        name, timesteps = next(iter(shift.items()))
    if not isinstance(timesteps, int) or timesteps < 0:
        raise ConfigError(f"loader: `shift` is {timesteps!r}, must be a whole number of timesteps")
    return name, timesteps
