"""The columns of a step: read and, with a transform, transformed.

``FieldReader`` reads the chosen fields and knows the lengths of a transform's results: a transform
that keeps lengths receives the spans, one that changes lengths the whole sequences. Worker
processes do all of this without torch. Place in the flow: step request -> columns, which the
collator lays out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes
from seqdata.code_digest import code_digest
from seqdata.index import SCAN_CHUNK, LengthMap, SequenceIndex
from seqdata.loading.options import ValueOptions
from seqdata.loading.step_requests import LinkedSpans, StepRequest
from seqdata.loading.transforms.apply import TransformApplier
from seqdata.loading.transforms.declare import (
    get_declared_axes,
    is_bounded,
    length_map_for,
    qualified_name,
)
from seqdata.protocols import Columns, Store
from seqdata.storage.concat import read_items
from seqdata.storage.dataset_items import ITEMS
from seqdata.storage.fields import default_axis, kind_of
from seqdata.storage.linking import AxisLinker

_MAX_NAME, _DIGITS = 120, 16  # of a transform in a state


@dataclass(frozen=True, slots=True, eq=False)
class FieldReader:
    """Reads the chosen fields of a store.

    Attributes:
        store: The store to read.
        axis: The planned axis, along which spans are cut.
        unshifted_fields: Fields that are read at the planned timesteps.
        shifted_field: The field that is read ``shift`` timesteps further; None without a shift.
            With a transform a name in its results, or None for the only ragged field there.
        shift: Number of timesteps between inputs and targets.
        axes: Axis of each field.
        transform: The transform of the columns; None: no transform.
        length_map: Function that maps stored lengths to those of the results; None: the transform
            declares none.
        measured_view: The view with the measured lengths of the results, or None if they were
            not measured.
        linker: Linker of the axes whose fields are cut with the planned one; None: fields of other
            axes are read whole.
        linked_fields: Linked axis -> the fields along it.
        is_opaque: Whether items of Datasets are read as they are, in one column ``ITEMS``.
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
    linker: AxisLinker | None = None
    linked_fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_opaque: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out ``length_map``, which may not be picklable: the transform has it."""
        fixed = (
            self.store,
            self.axis,
            self.unshifted_fields,
            self.shifted_field,
            self.shift,
            self.axes,
        )
        linker = self.linker
        linked = None if linker is None else (dict(self.linked_fields), linker.is_tiled)
        others = (self.transform, self.measured_view, linked, self.is_opaque)
        return _rebuild_reader, (*fixed, *others)

    def link(self, linked_fields: Mapping[str, tuple[str, ...]], *, is_tiled: bool) -> FieldReader:
        """Return a reader that cuts fields of linked axes with the planned one.

        Args:
            linked_fields: Axis -> the fields along it.
            is_tiled: As in ``AxisLinker``.
        """
        if not linked_fields:
            return self
        linker = AxisLinker.from_store(self.store, self.axis, is_tiled=is_tiled, shift=self.shift)
        return replace(self, linker=linker, linked_fields=linked_fields)

    def follow(self, spans: NDArray[np.int64], horizon: int) -> LinkedSpans | None:
        """Return the spans of linked axes; None: there are none.

        Args:
            spans: int64 (n, 3), spans of the planned axis.
            horizon: Timesteps of a window's future, after each span.
        """
        if self.linker is None:
            return None
        return self.linker.follow(spans, self.linked_fields, horizon=horizon)

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
        """Whether the transform changes lengths, so that it receives whole sequences."""
        return self.length_map is not None or self.measured_view is not None

    @property
    def has_bounded_lengths(self) -> bool:
        """Whether planned lengths are only upper bounds of the results' lengths."""
        return self.length_map is not None and is_bounded(self.transform)

    @property
    def transform_label(self) -> str:
        """The transform's name and a digest of its code; ``none`` without one.

        The state of an object is digested at the time of the call, and may change later.
        """
        if self.transform is None:
            return "none"
        return (
            f"{qualified_name(self.transform)[-_MAX_NAME:]} "
            f"({code_digest(self.transform)[:_DIGITS]})"
        )

    @property
    def length_advice(self) -> str:
        """Advice for a length that differs from the planned one."""
        if self.measured_view is not None:
            return (
                "Call `measure_lengths` again (`cache=False`) if the transform was changed, else "
                "make its lengths repeatable"
            )
        if self.length_map is not None:
            name = "max_length" if self.has_bounded_lengths else "lengths"
            return f"Change the transform, or its `.{name}`"
        return "Change the transform, or declare with `.lengths` how it changes lengths"

    @property
    def result_axes(self) -> dict[str, str | None]:
        """Field -> axis of the transform's results: the declared one, else the stored one.

        A string is not an array, so an array in its place is a new field.
        """
        fields = self.store.fields.items()
        strings = [name for name, field in fields if not kind_of(field).is_array]
        axis_of = self.axes.axis_of.items()
        stored_axes = {name: axis for name, axis in axis_of if name not in strings}
        return stored_axes | get_declared_axes(self.transform)

    def build_index(self) -> SequenceIndex:
        """Return the index of the lengths to plan."""
        index = SequenceIndex.from_store(self.measured_view or self.store)
        if self.length_map is not None:
            index = index.mapped(
                self.axis, self._describe_length_map(self.length_map), self.length_map
            )
        return index.shifted(self.axis, self.shift) if self.shift else index

    def compute_planned_lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the planned lengths of whole results, before a shift, int64 (n,)."""
        store = self.measured_view or self.store
        lengths: NDArray[np.int64] = store.lengths_of[self.axis][numbers].astype(np.int64)
        return lengths if self.length_map is None else self.length_map(lengths)

    def read_inputs(
        self, spans: NDArray[np.int64], linked: LinkedSpans | None = None
    ) -> dict[str, Any]:
        """Return the columns of the transform's input: spans, or whole sequences."""
        if not self.has_changed_lengths:
            return self._read_unshifted(spans, linked)
        lengths_of = self.store.lengths_of
        full_axis = self.axis if self.axis in lengths_of else default_axis(lengths_of)
        full_spans = np.zeros_like(spans)
        full_spans[:, 0] = spans[:, 0]
        full_spans[:, 2] = lengths_of[full_axis][spans[:, 0]]
        return self.store.read(full_spans, self.unshifted_fields, axis=full_axis)

    def extend(self, spans: NDArray[np.int64], horizon: int) -> NDArray[np.int64]:
        """Return spans extended by the horizon and, unless they are idle, by the shift.

        Without horizon and shift the same array is returned.
        """
        if not horizon and not self.shift:
            return spans
        extended = spans.copy()
        extended[:, 2] += horizon + np.where(spans[:, 2] > spans[:, 1], self.shift, 0)
        return extended

    def _read_unshifted(
        self, spans: NDArray[np.int64], linked: LinkedSpans | None
    ) -> dict[str, Any]:
        """Return the columns of fields at the planned timesteps, and at those of linked axes."""
        names = self.unshifted_fields
        if linked is None:
            return self.store.read(spans, names, axis=self.axis)
        apart = {name for axis in linked for name in self.linked_fields[axis]}
        own = [name for name in names if name not in apart]
        found = self.store.read(spans, own, axis=self.axis) if own else {}
        for axis, its_spans in linked.items():
            found |= self.store.read(its_spans, self.linked_fields[axis], axis=axis)
        return {name: found[name] for name in names}

    def read_columns(
        self,
        spans: NDArray[np.int64],
        *,
        joint_targets: bool,
        horizon: int = 0,
        linked: LinkedSpans | None = None,
    ) -> dict[str, Any]:
        """Return the columns of spans, with the shifted field ``shift`` timesteps further.

        Args:
            spans: int64 (n, 3): sequence, start, stop.
            joint_targets: Whether inputs and targets are one column, ``shift`` timesteps longer;
                else targets are a column of their own.
            horizon: Timesteps of a window's future, read after each span.
            linked: Spans of linked axes; None: there are none.
        """
        if self.is_opaque:
            return {ITEMS: read_items(self.store, np.ascontiguousarray(spans[:, 0]))}
        if horizon:
            spans = spans + np.array([0, 0, horizon])
        if self.shifted_field is None:
            if linked is None:
                return self.store.read(spans, self.unshifted_fields, axis=self.axis)
            return self._read_unshifted(spans, linked)
        columns = self._read_unshifted(spans, linked) if self.unshifted_fields else {}
        target_spans = self.extend(spans, 0)  # a copy: there is a shift
        if joint_targets:
            return columns | self.store.read(target_spans, (self.shifted_field,), axis=self.axis)
        columns |= self.store.read(spans, (self.shifted_field,), axis=self.axis)
        target_spans[:, 1] += target_spans[:, 2] - spans[:, 2]
        targets = self.store.read(target_spans, (self.shifted_field,), axis=self.axis)
        return columns | {TARGETS: targets[self.shifted_field]}

    def read_stream(self, spans: NDArray[np.int64]) -> dict[str, Any]:
        """Return the columns of spans of a stream, which include the lookahead timesteps."""
        names = (
            self.unshifted_fields
            if self.shifted_field is None
            else (*self.unshifted_fields, self.shifted_field)
        )
        return self.store.read(spans, names, axis=self.axis)

    def _describe_length_map(self, length_map: LengthMap) -> str:
        """Return a label of a length map, with a digest of some of its results."""
        lengths = self.store.lengths_of[self.axis]
        digest = hashlib.sha256()
        for chunk_lengths in (lengths[:SCAN_CHUNK], lengths[-SCAN_CHUNK:]):
            digest.update(
                length_map(np.asarray(chunk_lengths, dtype=np.int64)).astype("<i8").tobytes()
            )
        return f"transform={qualified_name(self.transform)}/{digest.hexdigest()[:16]}"


def _rebuild_reader(  # noqa: PLR0913
    store: Store,
    axis: str,
    unshifted_fields: tuple[str, ...],
    shifted_field: str | None,
    shift: int,
    axes: Axes,
    transform: Any,
    measured_view: Store | None,
    linked: tuple[Mapping[str, tuple[str, ...]], bool] | None,
    is_opaque: bool,
) -> FieldReader:
    length_map = (
        None if transform is None or measured_view is not None else length_map_for(transform)
    )
    reader = FieldReader(
        store,
        axis,
        unshifted_fields,
        shifted_field,
        shift,
        axes,
        transform,
        length_map,
        measured_view,
        is_opaque=is_opaque,
    )
    return reader if linked is None else reader.link(linked[0], is_tiled=linked[1])


class WorkerFetcher(Protocol):
    """The work of worker processes; it is picklable."""

    @property
    def reader(self) -> FieldReader:
        """The reader of the store."""
        ...

    @property
    def collate(self) -> Callable[[Columns, Axes, int], Any] | None:
        """Function that collates the columns of a number of rows; None: columns are returned."""
        ...

    def fetch(self, request: StepRequest) -> tuple[Columns, Axes]:
        """Return the columns of a request, and the axis of each field."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Fetcher:
    """Fetches the columns of requests; it can be sent to a worker process.

    Attributes:
        reader: Reader of columns.
        transform_applier: Applier of the transform; None if there is none.
        collate: Function that collates the columns of a number of rows in a worker; None: the
            training process does.
        value_options: Conversion and checks of values; None if they are delivered as stored.
    """

    reader: FieldReader
    transform_applier: TransformApplier | None
    collate: Callable[[Columns, Axes, int], Any] | None = None
    value_options: ValueOptions | None = None

    def fetch(self, request: StepRequest) -> tuple[Columns, Axes]:
        """Return the columns of a step, and the axis of each field.

        Raises:
            DataError: If stored data is damaged, or a transform's result does not fit.
        """
        reader, axes = self.reader, self.reader.axes
        columns: Columns
        if self.transform_applier is not None:
            columns, axes = self.transform_applier.apply(request)
        elif request.is_shifted_stream:
            columns = reader.read_stream(request.spans)
        else:
            linked = request.linked
            if linked is None and reader.linker is not None:
                linked = reader.follow(request.spans, request.horizon)
            columns = reader.read_columns(
                request.spans, joint_targets=request.joint_targets, horizon=request.horizon,
                linked=linked,
            )  # fmt: skip
        if self.value_options is not None:
            columns = self.value_options.convert_columns(columns, axes, request, reader.store)
        return columns, axes
