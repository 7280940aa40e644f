"""Columns of a step: read and, where there is a transform, transformed.

This is what worker processes do; all of it works without torch. Place in the flow: request ->
columns, which the collator lays out. Reads: a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from seqdata.batch.axes import Axes
from seqdata.loading.field_reader import Reading
from seqdata.loading.step_requests import Request
from seqdata.loading.transforms.apply import Transforming
from seqdata.loading.value_options import Values
from seqdata.protocols import Columns


class Work(Protocol):
    """What worker processes do; it can be sent to them."""

    @property
    def reading(self) -> Reading:
        """What reads; its store knows where sequences lie."""
        ...

    @property
    def collate(self) -> Callable[[Columns, Axes, int], Any] | None:
        """Makes something of the columns of so many rows; None: columns are what is wanted."""
        ...

    def columns(self, request: Request) -> tuple[Columns, Axes]:
        """Give the columns of a request, and which of their fields runs along which axis."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Fetching:
    """Gives the columns of requests; can be sent to a worker process.

    Attributes:
        reading: Reads columns.
        transforming: Changes them; None: nothing does.
        collate: Makes something of the columns of so many rows, in a worker; None: the training
            process does.
        values: Converts and checks what is delivered; None: it is delivered as it is.
    """

    reading: Reading
    transforming: Transforming | None
    collate: Callable[[Columns, Axes, int], Any] | None = None
    values: Values | None = None

    def columns(self, request: Request) -> tuple[Columns, Axes]:
        """Give the columns of a step, and which of their fields runs along which axis.

        Raises:
            DataError: If what is stored is damaged, or a transform's result does not fit.
        """
        columns, axes = self._columns(request)
        if self.values is not None:
            columns = self.values.columns(columns, axes, request, self.reading.store)
        return columns, axes

    def _columns(self, request: Request) -> tuple[Columns, Axes]:
        if self.transforming is not None:
            return self.transforming.columns(request)
        reading = self.reading
        if request.streamed:
            return reading.as_they_are(request.spans), reading.axes
        columns = reading.columns(request.spans, together=request.together, horizon=request.horizon)
        return columns, reading.axes
