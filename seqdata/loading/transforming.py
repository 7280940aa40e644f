"""Transforms in process: between reading and collating, one sequence at a time or a whole batch.

A transform that keeps lengths sees the spans (and what is read past them); one that changes lengths
sees whole sequences, and its results are cut to the spans. It draws from a generator that is keyed
by (seed, epoch, sequence), so that results do not depend on threads, ranks or resumes. Place in the
flow: spans -> columns. Reads: columns of a ``Reading``. Makes: columns over new arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.axes import Axes, unknown_name
from seqdata.errors import ConfigError, DecodeError, SeqDataError, trailer
from seqdata.loading.columnar import shown, taken
from seqdata.loading.reading import TARGETS, Reading
from seqdata.loading.results import Results, checked, gathered
from seqdata.planning.randomness import Draw, Purpose
from seqdata.protocols import Columns, Store
from seqdata.transforms import is_columnar

Crops = Callable[[NDArray[np.int64], int], NDArray[np.int64]]
"""``crops(spans, epoch)``: int64 (n, 3) and an epoch -> int64 (n,)."""

_RUN = 1 << 16  # sequences looked at together
_NAMED = 5  # sequences that a message names


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a step asks of a transform.

    Attributes:
        spans: int64 (n, 3): sequence, start, stop.
        ids: int64 (n,), base number of each span's sequence.
        epoch: Of the plan.
        horizon: Timesteps of a window's future, behind every span.
    """

    spans: NDArray[np.int64]
    ids: NDArray[np.int64]
    epoch: int
    horizon: int = 0

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Timesteps of each span, int64 (n,)."""
        lengths: NDArray[np.int64] = self.spans[:, 2] - self.spans[:, 1]
        return lengths


@dataclass(frozen=True, slots=True, eq=False)
class Transforming:
    """Applies a transform to the sequences of a batch.

    Args:
        reading: Reads what it sees, and knows the lengths that were planned.
        seed: Of the generators.
        occurrences: int64 (sequences,), how many earlier positions of a view hold the same base
            sequence; None: each is there once.
        axes: Which field runs along which axis, in what it sees and in what it gives.
        crops: Gives the number of each span among its sequence's random crops, for an epoch.
    """

    reading: Reading
    seed: int
    occurrences: NDArray[np.int64] | None
    axes: Axes
    crops: Crops | None = None

    def columns(self, rows: Rows, *, together: bool) -> tuple[Columns, Axes]:
        """Read and transform the spans of a step.

        Args:
            rows: What is asked.
            together: Whether inputs and targets of a shift are one column, ``shift`` timesteps
                longer; else targets are a column of their own.

        Returns:
            The columns, and which of their fields runs along which axis.

        Raises:
            DecodeError: If a result is no dict, its fields do not fit, or its length is not what
                was planned; naming the sequence.
            ConfigError: If the results do not have the field that is shifted.
        """
        reading = self.reading
        seen = reading.pieces(rows.spans, horizon=rows.horizon)
        results = self.results(seen, rows)
        if reading.changes:
            planned = reading.planned(rows.spans[:, 0])
            begins = rows.spans[:, 1]
        else:
            planned = reading.widened(rows.spans, rows.horizon)[:, 2] - rows.spans[:, 1]
            begins = np.zeros(len(rows.spans), dtype=np.int64)
        self._check_lengths(results, planned, rows.ids)
        return self._cut(results, begins, rows, together=together)

    def results(self, seen: Columns, rows: Rows) -> Results:
        """Transform what was read; lengths are not looked at.

        Raises:
            DecodeError: If a result is no dict, or its fields do not fit.
        """
        if is_columnar(self.reading.transform):
            return self._at_once(seen, rows)
        made = []
        wrong, occurrences = self._wrong(rows.ids), self._occurrences(rows)
        for piece, base in enumerate(rows.ids.tolist()):
            sequence = {name: self._piece(column, piece, name) for name, column in seen.items()}
            result = self._one(sequence, int(occurrences[piece]), base, rows.epoch)
            made.append(checked(result, piece, self._axis, wrong))
        return gathered(made, self._axis, wrong, lambda piece: self.name(int(rows.ids[piece])))

    def name(self, base: int) -> str:
        """Name a sequence in a message."""
        return repr(self.reading.store.keys([base])[0])

    def wrong(self, base: int, what: str, **facts: int | str) -> DecodeError:
        """Make the error about what a transform gave for a sequence."""
        text = f"transform of sequence {self.name(base)}: {what}; change the transform"
        return DecodeError.at(text, sequence=base, **facts)

    def _occurrences(self, rows: Rows) -> NDArray[np.int64]:
        """Count what was drawn for before of each span's sequence: positions of a view, or crops.

        The upper half of a number is the position's, the lower half the crop's.
        """
        numbers = rows.spans[:, 0]
        before = np.zeros_like(numbers)
        if self.occurrences is not None:
            before = self.occurrences[numbers]
        if self.crops is None:
            return before
        return (before << 32) + self.crops(rows.spans, rows.epoch)

    def _one(self, sequence: dict[str, Any], occurrence: int, base: int, epoch: int) -> Any:
        key = np.array([self.seed, epoch], dtype=np.uint64)
        counter = np.array([0, occurrence, int(Purpose.TRANSFORM), base], dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key, counter=counter))
        with _told(lambda: f"in the transform of sequence {self.name(base)}", sequence=base):
            return self.reading.transform(sequence, rng)

    def _at_once(self, seen: Columns, rows: Rows) -> Results:
        occurrences = self._occurrences(rows)
        seeds = Draw(self.seed, rows.epoch).each(Purpose.TRANSFORM, occurrences, rows.ids)

        def where() -> str:  # asked for by errors only: names may have to be read
            return self._several(rows.ids)

        with _told(lambda: f"in the {where()}"):
            result = self.reading.transform(shown(seen, self.reading.axes), seeds)
        return taken(result, len(occurrences), self.axes, where)

    def _several(self, ids: NDArray[np.int64]) -> str:
        keys = [repr(key) for key in self.reading.store.keys(ids[:_NAMED])]
        more = ", …" if len(ids) > _NAMED else ""
        return f"transform of sequences {', '.join(keys)}{more}"

    def _piece(self, column: Any, number: int, name: str) -> Any:
        if isinstance(column, list):
            return column[number]
        piece = np.array(column[number])  # a copy: what is mapped is not for writing
        return piece if self.reading.axes.along(name) is not None else piece[0]

    def _axis(self, name: str, dimensions: int) -> str | None:
        return self.axes.axis_of.get(name, self.axes.axis if dimensions else None)

    def _wrong(self, ids: NDArray[np.int64]) -> Any:
        return lambda piece, what: self.wrong(int(ids[piece]), what)

    def _check_lengths(
        self, results: Results, planned: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> None:
        for name in results.along(self.axes.axis):
            found = results.columns[name].lengths
            bad = np.flatnonzero(found != planned)
            if not len(bad):
                continue
            was, must = int(found[bad[0]]), int(planned[bad[0]])
            rule = "have" if self.reading.changes else "keep"
            raise self.wrong(
                int(ids[bad[0]]),
                f"gave field {name!r} {was} timesteps, must {rule} the planned {must}"
                + self.reading.advice,
                field=name,
                planned=must,
                found=was,
            )

    def _cut(
        self, results: Results, begins: NDArray[np.int64], rows: Rows, *, together: bool
    ) -> tuple[Columns, Axes]:
        axis, shift = self.axes.axis, self.reading.shift
        shifted = self._shifted(results) if shift else None
        ends = begins + rows.lengths + rows.horizon
        further = np.where(rows.lengths > 0, shift, 0)
        columns: dict[str, Any] = {}
        axis_of = dict(results.axis_of)
        for name, made in results.columns.items():
            if isinstance(made, list):
                columns[name] = made
            elif axis_of[name] != axis:
                columns[name] = made.cut(np.zeros_like(begins), made.lengths)
            elif name != shifted:
                columns[name] = made.cut(begins, ends)
            elif together:
                columns[name] = made.cut(begins, ends + further)
            else:
                columns[name] = made.cut(begins, ends)
                columns[TARGETS] = made.cut(begins + further, ends + further)
                axis_of[TARGETS] = axis
        return columns, Axes(axis, axis_of, {} if shifted is None else {shifted: shift})

    def _shifted(self, results: Results) -> str:
        """Find the field that is shifted: the one that was named, or the only ragged one."""
        ragged, name = results.along(self.axes.axis), self.reading.shifted
        if TARGETS in results.columns:
            raise ConfigError(
                "loader: the transform gives a field 'targets', must not with `shift`; leave one "
                "of them out"
            )
        if name is None and len(ragged) != 1:
            raise ConfigError(
                f"loader: `shift` is {self.reading.shift} with {len(ragged)} fields on axis "
                f"{self.axes.axis!r} from the transform ({', '.join(ragged) or 'none'}), must say "
                "which; write shift={'tokens': 1}"
            )
        if name is not None and name not in ragged:
            raise ConfigError(
                f"loader: `shift` names {unknown_name(name, ragged)} on axis {self.axes.axis!r} "
                "from the transform"
            )
        return name or ragged[0]


def transforming_of(reading: Reading, seed: int, crops: Crops | None = None) -> Transforming:
    """Prepare the transform of a reading."""
    axes = Axes(reading.axis, reading.made_axes)
    return Transforming(reading, seed, occurrences_of(reading.store), axes, crops)


def occurrences_of(store: Store) -> NDArray[np.int64] | None:
    """Count, for each position of a view, the earlier ones that hold the same base sequence.

    None: each is there once. Where they rise, as in most stores, nothing is sorted or kept.
    """
    if _rises(store):
        return None
    bases = store.base_numbers(np.arange(len(store), dtype=np.int64))
    order = np.argsort(bases, kind="stable")
    ranked = bases[order]
    begins = np.ones(len(bases), dtype=bool)
    begins[1:] = ranked[1:] != ranked[:-1]
    if begins.all():
        return None
    places = np.arange(len(bases))
    firsts = np.maximum.accumulate(np.where(begins, places, 0))
    counted = np.empty(len(bases), dtype=np.int64)
    counted[order] = places - firsts
    return counted


def _rises(store: Store) -> bool:
    last = -1
    for first in range(0, len(store), _RUN):
        run = np.arange(first, min(first + _RUN, len(store)), dtype=np.int64)
        bases = store.base_numbers(run)
        if bases[0] <= last or (np.diff(bases) <= 0).any():
            return False
        last = int(bases[-1])
    return True


@contextmanager
def _told(place: Callable[[], str], **facts: int | str) -> Iterator[None]:
    """Say in an exception where it was raised: which sequence."""
    try:
        yield
    except SeqDataError as error:
        raise type(error).at(f"{error}\n  {place()}", **{**error.facts, **facts}) from error
    except Exception as error:
        error.add_note(place())
        if facts:
            error.add_note(trailer(**facts))
        raise
