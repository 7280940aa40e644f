"""The store of recordings: signals, annotations, labels per timestep, and facts of headers.

Reads: spans. Makes: columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata import Axis
from seqdata.backends import (
    ArrayColumn,
    DataLocation,
    Field,
    ShardStore,
    make_unknown_name_error,
)
from seqdata.errors import ConfigError
from seqdata_biosignals.decoding import SignalColumn
from seqdata_biosignals.fields import SignalField
from seqdata_biosignals.files import SAMPLE_FIELD


@dataclass(frozen=True, slots=True, eq=False)
class RaggedValues:
    """Numbers along an axis that are in memory, such as the onsets of annotations.

    Attributes:
        axis: Their axis.
        values: (total,), the numbers of all sequences, concatenated.
        offsets: int64 (n+1,), the first number of each sequence in ``values``.
    """

    axis: str
    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of values of each sequence, int64 (n,)."""
        return np.diff(self.offsets)

    def column(self, spans: NDArray[np.int64]) -> ArrayColumn:
        """Return the column of spans."""
        firsts = self.offsets[spans[:, 0]]
        places = zip((firsts + spans[:, 1]).tolist(), (firsts + spans[:, 2]).tolist(), strict=True)
        pieces = [self.values[begin:end] for begin, end in places]
        return ArrayColumn(self.values.dtype, (), pieces)


@dataclass(frozen=True, slots=True, eq=False)
class StepLabels:
    """An integer for each timestep, stored as runs of equal values.

    Attributes:
        axis: Their axis.
        codes: int64 (runs,), the value of each run, over all sequences.
        edges: int64 (runs + n,), the first timestep of each run; after those of a sequence, its
            length.
        offsets: int64 (n+1,), the first run of each sequence in ``codes``.
    """

    axis: str
    codes: NDArray[np.int64]
    edges: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def column(self, spans: NDArray[np.int64]) -> ArrayColumn:
        """Return the column of spans."""
        pieces = []
        for number, start, stop in spans.tolist():
            begin, end = self.offsets[number], self.offsets[number + 1]
            edges = self.edges[begin + number : end + number + 1]
            first = int(np.searchsorted(edges, start, "right")) - 1
            last = max(first, int(np.searchsorted(edges, stop, "left")))
            inside = np.clip(edges[first : last + 1], start, stop)
            counts: NDArray[np.int64] = inside[1:] - inside[:-1]
            pieces.append(np.repeat(self.codes[begin + first : begin + last], counts))
        return ArrayColumn(np.dtype(np.int64), (), pieces)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BiosignalStore:
    """Store whose sequences are recordings. Implements ``seqdata.protocols.Store``.

    Attributes:
        files: The store of the bytes of all files.
        names: Id of each sequence.
        signals: Fields of samples, by name.
        ragged: Other fields along an axis, by name.
        texts: Strings of each sequence, by field.
        numbers: (n,) numbers of each sequence, by field.
        options: The options with which it was opened, as a string.
    """

    files: ShardStore
    names: Sequence[str]
    signals: Mapping[str, SignalField]
    ragged: Mapping[str, RaggedValues | StepLabels]
    texts: Mapping[str, Sequence[str]]
    numbers: Mapping[str, NDArray[Any]]
    options: str

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        fields = {
            name: Field(signal.dtype, signal.shape, signal.axis)
            for name, signal in self.signals.items()
        }
        for name, values in self.ragged.items():
            dtype = values.codes if isinstance(values, StepLabels) else values.values
            fields[name] = Field(dtype.dtype.name, (), values.axis)
        fields |= {name: Field("str", (), None) for name in self.texts}
        return fields | {name: Field(values.dtype.name, (), None)
                         for name, values in self.numbers.items()}  # fmt: skip

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each sequence along ``time``, int64 (sequences,)."""
        return next(iter(self.signals.values())).lengths

    @property
    def lengths_of(self) -> Mapping[str, NDArray[np.int64]]:
        """Axis -> number of timesteps of each sequence, int64 (sequences,)."""
        found = {signal.axis: signal.lengths for signal in self.signals.values()}
        for values in self.ragged.values():
            if isinstance(values, RaggedValues):
                found.setdefault(values.axis, values.lengths)
        return found

    @property
    def linked_axes(self) -> Mapping[str, Axis]:
        """Axis -> its sampling rate, for axes with the same rate in all recordings."""
        return {
            signal.axis: Axis(signal.rates[0])
            for signal in self.signals.values()
            if len(set(signal.rates)) == 1
        }

    @property
    def shards(self) -> Sequence[str]:
        """Names of all files."""
        return self.files.shards

    @property
    def fingerprint(self) -> str:
        """Digest of the content of all files, and of the options (32 hex digits)."""
        text = f"{self.files.fingerprint}\n{self.options}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def location(self) -> str | None:
        """Location without credentials."""
        return self.files.location

    @property
    def is_local(self) -> bool:
        """Whether all data is on this machine."""
        return self.files.is_local

    @property
    def folder(self) -> Path | None:
        """A local folder in which measured values may be stored; None: there is none."""
        return self.files.folder

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"BiosignalStore({self.location!r}, {len(self)} sequences)"

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences.

        Raises:
            ConfigError: If there is no such sequence.
        """
        self._check_numbers(np.asarray(numbers, dtype=np.int64))
        return [self.names[number] for number in numbers]

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same indices, because this store is not a view."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of a sequence, for an error; of the dataset if it is invalid."""
        known = 0 <= number < len(self)
        signal = next(iter(self.signals.values()))
        return self.files.locate(int(signal.rows[number, 0]) if known else -1)

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch the files of sequences; see ``protocols.SupportsPrefetch``."""
        rows = next(iter(self.signals.values())).rows[numbers]
        return self.files.prefetch(rows.reshape(-1))

    def estimate_fetches(self, batches: int, rows: float) -> float:
        """Return how often files are fetched; see ``protocols.SupportsShardCache``."""
        return self.files.estimate_fetches(batches, rows)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``.

        Raises:
            ConfigError: If a field, the axis, a sequence or a timestep does not exist.
            DataError: If a file is damaged or gone.
        """
        spans = np.ascontiguousarray(spans, dtype=np.int64)
        where, lengths_of = str(self.location), self.lengths_of
        if spans.ndim != 2 or spans.shape[1] != 3:
            raise ConfigError(
                f"{where}: `spans` must have shape (n, 3), with columns sequence, start and stop, "
                f"but has shape {spans.shape}"
            )
        if axis not in lengths_of:
            raise make_unknown_name_error(where, "axis", axis, lengths_of)
        numbers = spans[:, 0]
        self._check_numbers(numbers)
        self._check_spans(spans, lengths_of[axis], axis)
        along: dict[str | None, NDArray[np.int64]] = {axis: spans}
        columns: dict[str, Any] = {}
        for name in fields:
            if name in self.texts:
                columns[name] = [self.texts[name][number] for number in numbers.tolist()]
                continue
            if name in self.numbers:
                values = self.numbers[name][numbers]
                columns[name] = ArrayColumn(values.dtype, (), list(values[:, None]))
                continue
            source = self.signals.get(name) or self.ragged.get(name)
            if source is None:
                raise make_unknown_name_error(where, "field", name, self.fields)
            if source.axis not in along:
                along[source.axis] = _make_full_spans(numbers, lengths_of[source.axis])
            its_spans = along[source.axis]
            if isinstance(source, SignalField):
                columns[name] = self._read_signal(source, its_spans)
            else:
                columns[name] = source.column(its_spans)
        return columns

    def _read_signal(self, signal: SignalField, spans: NDArray[np.int64]) -> SignalColumn:
        which = signal.layout_of[spans[:, 0]]
        counts = np.array([layout.count for layout in signal.layouts], np.int64)[which]
        firsts = np.cumsum(counts) - counts
        ranges = np.zeros((int(counts.sum()), 3), np.int64)
        for number in np.unique(which).tolist():
            chosen = np.flatnonzero(which == number)
            its_spans, at = spans[chosen], firsts[chosen]
            rows = signal.rows[its_spans[:, 0]]
            for part in signal.layouts[number].parts:
                places = at[:, None] + np.arange(part.count)
                ranges[places, 0] = rows[:, part.slot, None]
                ranges[places, 1:] = part.find_bytes(its_spans[:, 1], its_spans[:, 2])
                at = at + part.count
        raw = self.files.read(ranges, [SAMPLE_FIELD], axis="byte")[SAMPLE_FIELD]
        return SignalColumn(
            np.dtype(signal.dtype), signal.shape, signal.layouts, which, spans, raw, firsts
        )

    def _check_numbers(self, numbers: NDArray[np.int64]) -> None:
        outside = (numbers < 0) | (numbers >= len(self))
        if outside.any():
            raise ConfigError(
                f"{self.location}: the index of a sequence must be in [0, {len(self)}), but is "
                f"{int(numbers[outside][0])}. Use a plan that was made for this data."
            )

    def _check_spans(self, spans: NDArray[np.int64], lengths: NDArray[np.int64], axis: str) -> None:
        due = lengths[spans[:, 0]]
        outside = (spans[:, 1] < 0) | (spans[:, 1] > spans[:, 2]) | (spans[:, 2] > due)
        if outside.any():
            at = int(np.argmax(outside))
            number, start, stop = spans[at].tolist()
            raise ConfigError(
                f"{self.location}: sequence {number} ({self.names[number]!r}): timesteps along "
                f"{axis!r} must be in 0..{due[at]}, but {start}..{stop} were requested. Use a "
                "plan that was made for this data."
            )


def _make_full_spans(numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([numbers, np.zeros_like(numbers), lengths[numbers]], axis=1)
