"""Transforms: between reading and collating, one sequence at a time or a whole batch.

A transform that keeps lengths sees the spans (and what is read past them); one that changes lengths
sees whole sequences, and its results are cut to the spans. It draws from a generator that is keyed
by (seed, epoch, sequence), so that results do not depend on threads, ranks or resumes. Place in the
flow: spans -> columns. Reads: columns of a ``Reading``. Makes: columns over new arrays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import TARGETS, Axes, unknown_name
from seqdata.errors import ConfigError, DecodeError, Fact, SeqDataError
from seqdata.loading.field_reader import Reading
from seqdata.loading.step_requests import Request
from seqdata.loading.transforms.columnar import shown, taken
from seqdata.loading.transforms.declare import is_columnar
from seqdata.loading.transforms.inputs import Generator, pieces_of
from seqdata.loading.transforms.results import Results, checked, gathered
from seqdata.planning.randomness import Draw, Purpose
from seqdata.protocols import Columns
from seqdata.storage.views import place_of

_NAMED = 5  # sequences that a message names


@dataclass(frozen=True, slots=True, eq=False)
class Transforming:
    """Applies a transform to the sequences of a batch.

    Args:
        reading: Reads what it sees, and knows the lengths that were planned.
        seed: Of the generators.
        axes: Which field runs along which axis, in what it sees and in what it gives.
    """

    reading: Reading
    seed: int
    axes: Axes

    def columns(self, request: Request) -> tuple[Columns, Axes]:
        """Read and transform the spans of a step.

        Returns:
            The columns, and which of their fields runs along which axis.

        Raises:
            DecodeError: If a result is no dict, its fields do not fit, or its length is not what
                was planned; naming the sequence.
            ConfigError: If the results do not have the field that is shifted.
        """
        reading = self.reading
        spans = request.spans
        wide = spans if request.streamed else reading.widened(spans, request.horizon)
        seen = reading.pieces(wide)
        results = self.results(seen, request)
        if reading.changes:
            planned = reading.planned(spans[:, 0])
            begins = spans[:, 1]
        else:
            planned = wide[:, 2] - spans[:, 1]
            begins = np.zeros(len(spans), dtype=np.int64)
        self._check_lengths(results, planned, request.ids)
        if reading.bounded:
            request = self._shortened(results, request)
            begins = request.spans[:, 1]
        return self._cut(results, begins, request)

    def _shortened(self, results: Results, request: Request) -> Request:
        """Return the request with spans that end where results do."""
        names, spans = results.along(self.axes.axis), request.spans.copy()
        if not names:
            return request
        found = results.columns[names[0]].lengths
        for name in names[1:]:
            bad = np.flatnonzero(results.columns[name].lengths != found)
            if len(bad):
                was, must = int(results.columns[name].lengths[bad[0]]), int(found[bad[0]])
                raise self.wrong(
                    int(request.ids[bad[0]]),
                    f"gave field {name!r} {was} timesteps and {names[0]!r} {must}, must be equal",
                    field=name,
                )
        true = np.maximum(found - self.reading.shift, 0)
        spans[:, 1] = np.minimum(spans[:, 1], true)
        spans[:, 2] = np.minimum(spans[:, 2], true)
        return replace(request, spans=spans)

    def results(self, seen: Columns, request: Request) -> Results:
        """Transform what was read; lengths are not looked at.

        Raises:
            DecodeError: If a result is no dict, or its fields do not fit.
        """
        if is_columnar(self.reading.transform):
            return self._at_once(seen, request)
        made = []
        ids = request.ids
        wrong, drawings = self._wrong(ids), request.drawings().tolist()
        pieces = [
            (name, pieces_of(column, ragged=self.reading.axes.along(name) is not None))
            for name, column in seen.items()
        ]
        generator = Generator(self.seed, request.epoch)
        transform = self.reading.transform
        for number, base in enumerate(ids.tolist()):
            request.tell(base)
            sequence = {name: piece(number) for name, piece in pieces}
            try:
                result = transform(sequence, generator.at(drawings[number], base))
            except Exception as error:
                where = f"transform of sequence {self.name(base)}"
                raise _told(error, where, self._facts(base)) from error.__cause__
            made.append(checked(result, number, self._axis, wrong))
        return gathered(made, self._axis, wrong, lambda piece: self.name(int(ids[piece])))

    def name(self, base: int) -> str:
        """Name a sequence in a message."""
        return repr(self.reading.store.keys([base])[0])

    def wrong(self, base: int, what: str, **facts: int | str) -> DecodeError:
        """Make the error about what a transform gave for a sequence."""
        text = f"transform of sequence {self.name(base)}: {what}; change the transform"
        return DecodeError.at(text, **{**self._facts(base), **facts})

    def _facts(self, base: int) -> dict[str, Fact]:
        """Give the place of a sequence; what lies there is as it should be."""
        facts = place_of(self.reading.store, base).facts
        return {name: fact for name, fact in facts.items() if name != "remedy"}

    def _at_once(self, seen: Columns, request: Request) -> Results:
        ids, drawings = request.ids, request.drawings()
        seeds = Draw(self.seed, request.epoch).hashed(Purpose.TRANSFORM, drawings, ids)

        def where() -> str:  # asked for by errors only: names may have to be read
            return self._several(ids)

        try:
            result = self.reading.transform(shown(seen, self.reading.axes), seeds)
        except Exception as error:
            raise _told(error, where(), {}) from error.__cause__
        return taken(result, len(ids), self.axes, where)

    def _several(self, ids: NDArray[np.int64]) -> str:
        keys = [repr(key) for key in self.reading.store.keys(ids[:_NAMED])]
        more = ", …" if len(ids) > _NAMED else ""
        return f"transform of sequences {', '.join(keys)}{more}"

    def _axis(self, name: str, dimensions: int) -> str | None:
        return self.axes.axis_of.get(name, self.axes.axis if dimensions else None)

    def _wrong(self, ids: NDArray[np.int64]) -> Any:
        return lambda piece, what: self.wrong(int(ids[piece]), what)

    def _check_lengths(
        self, results: Results, planned: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> None:
        for name in results.along(self.axes.axis):
            found = results.columns[name].lengths
            bounded = self.reading.bounded
            bad = np.flatnonzero(found > planned if bounded else found != planned)
            if not len(bad):
                continue
            was, must = int(found[bad[0]]), int(planned[bad[0]])
            rule = "have" if self.reading.changes else "keep"
            rule = "have at most" if bounded else rule
            raise self.wrong(
                int(ids[bad[0]]),
                f"gave field {name!r} {was} timesteps, must {rule} the planned {must}"
                + self.reading.advice,
                field=name,
                planned=must,
                found=was,
            )

    def _cut(
        self, results: Results, begins: NDArray[np.int64], request: Request
    ) -> tuple[Columns, Axes]:
        axis, shift = self.axes.axis, self.reading.shift
        shifted = self._shifted(results) if shift else None
        lengths = request.lengths
        ends = begins + lengths + request.horizon
        further = np.where(lengths > 0, shift, 0)
        columns: dict[str, Any] = {}
        axis_of = dict(results.axis_of)
        for name, made in results.columns.items():
            if isinstance(made, list):
                columns[name] = made
            elif axis_of[name] != axis:
                columns[name] = made.cut(np.zeros_like(begins), made.lengths)
            elif name != shifted or request.streamed:
                columns[name] = made.cut(begins, ends)
            elif request.together:
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


def transforming_of(reading: Reading, seed: int) -> Transforming:
    """Prepare the transform of a reading."""
    return Transforming(reading, seed, Axes(reading.axis, reading.made_axes))


def _told(error: Exception, where: str, facts: Mapping[str, Fact]) -> Exception:
    """Say in an exception where it was raised: which sequence."""
    if isinstance(error, SeqDataError):
        return error.with_place(f"in the {where}", **facts).with_traceback(error.__traceback__)
    error.add_note(f"in the {where}")
    if facts:
        with contextlib.suppress(AttributeError, TypeError):  # an exception without attributes
            vars(error).setdefault("facts", dict(facts))
    return error
