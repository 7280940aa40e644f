"""Columns of a step: read and, where there is a transform, transformed.

This is what worker processes do; all of it works without torch. Place in the flow: request ->
columns, which the collator lays out. Reads: a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from seqdata.batch.axes import Axes
from seqdata.loading.field_reader import FieldReader
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.apply import TransformApplier
from seqdata.loading.value_options import ValueOptions
from seqdata.protocols import Columns


class WorkerFetcher(Protocol):
    """What worker processes do; it can be sent to them."""

    @property
    def reader(self) -> FieldReader:
        """What reads; its store knows where sequences lie."""
        ...

    @property
    def collate(self) -> Callable[[Columns, Axes, int], Any] | None:
        """Makes something of the columns of so many rows; None: columns are what is wanted."""
        ...

    def fetch(self, request: StepRequest) -> tuple[Columns, Axes]:
        """Return the columns of a request, and which of their fields runs along which axis."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Fetcher:
    """Gives the columns of requests; can be sent to a worker process.

    Attributes:
        reader: Reads columns.
        transform_applier: Changes them; None: nothing does.
        collate: Makes something of the columns of so many rows, in a worker; None: the training
            process does.
        value_options: Converts and checks what is delivered; None: it is delivered as it is.
    """

    reader: FieldReader
    transform_applier: TransformApplier | None
    collate: Callable[[Columns, Axes, int], Any] | None = None
    value_options: ValueOptions | None = None

    def fetch(self, request: StepRequest) -> tuple[Columns, Axes]:
        """Return the columns of a step, and which of their fields runs along which axis.

        Raises:
            DataError: If what is stored is damaged, or a transform's result does not fit.
        """
        columns, axes = self._fetch_unconverted(request)
        if self.value_options is not None:
            columns = self.value_options.convert_columns(columns, axes, request, self.reader.store)
        return columns, axes

    def _fetch_unconverted(self, request: StepRequest) -> tuple[Columns, Axes]:
        if self.transform_applier is not None:
            return self.transform_applier.apply(request)
        reader = self.reader
        if request.is_shifted_stream:
            return reader.read_stream(request.spans), reader.axes
        columns = reader.read_columns(
            request.spans, joint_targets=request.joint_targets, horizon=request.horizon
        )
        return columns, reader.axes
