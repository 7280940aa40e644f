"""Measurement of the lengths of a transform's results, which are cached next to the data.

A transform that cannot declare its lengths, such as a tokenizer, runs once over all sequences.
``TransformedRows`` are the results, for writing.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.capabilities import get_base_keys
from seqdata.code_digest import code_digest, describe_code
from seqdata.errors import ConfigError, StopIterationGuard, must_be
from seqdata.index import DEFAULT_AXIS
from seqdata.loading.fetcher import FieldReader
from seqdata.loading.field_selection import make_full_reader
from seqdata.loading.options import EngineOptions
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.apply import TransformApplier, make_transform_applier
from seqdata.loading.transforms.declare import is_bounded, length_map_for, qualified_name
from seqdata.loading.transforms.results import TransformResults
from seqdata.loading.transforms.rng import Occurrences, count_occurrences
from seqdata.loading.workers.session import WorkerPoolCache
from seqdata.protocols import Columns, Store, SupportsBase, SupportsLocality, Transform
from seqdata.resolve import resolve_store
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.data_location import narrow_lengths
from seqdata.storage.digest_trailer import read_with_digest, write_with_digest
from seqdata.storage.fields import ID_FIELD
from seqdata.storage.parts import drop_transform
from seqdata.storage.selection import MeasuredTransform
from seqdata.storage.store_rows import has_ids
from seqdata.storage.views import (
    View,
    get_measured_transform,
    with_transform,
)
from seqdata.storage.writing.progress import progress_bar

# Number of sequences that are transformed together.
CHUNK_SEQUENCES = 64
_LENGTHS = "lengths"


@dataclass(frozen=True, slots=True, eq=False)
class _LengthMeasurer:
    """Fetcher of lengths, which can be sent to a worker process.

    Attributes:
        transform_applier: Applier of the transform.
        collate: None, because results are not collated.
    """

    transform_applier: TransformApplier
    collate: None = None

    @property
    def reader(self) -> FieldReader:
        """Reader of the sequences."""
        return self.transform_applier.reader

    def fetch(self, request: StepRequest) -> tuple[Columns, Axes]:
        """Return the lengths of the results, in a column with a single piece."""
        applier, reader = self.transform_applier, self.reader
        with StopIterationGuard("measure_lengths: `transform`", reader.transform):
            results = applier.compute_results(reader.read_inputs(request.spans), request)
        lengths = _lengths_along(applier, results, request)
        return {_LENGTHS: ArrayColumn(lengths.dtype, (), [lengths])}, reader.axes


def measure_lengths(
    store: Any,
    transform: Transform,
    *,
    num_workers: int = 0,
    progress: bool | None = None,
    axis: str = DEFAULT_AXIS,
    cache: bool = True,
) -> View:
    """Run a transform over all sequences, and return a view with the transform and its lengths.

    A Loader or DataModule uses the view as a store, without an argument ``transform``. Views of
    this view keep the transform. Random numbers in the measurement are those of seed 0 and epoch 0;
    lengths must not depend on random numbers.

    Args:
        store: A store, the location of one, or sequences in memory.
        transform: ``transform(sequence, rng) -> dict``, or a ``columnar`` one.
        num_workers: Number of worker processes; 0: use this process. With worker processes, the
            transform must be picklable, as a function of a module is.
        progress: Whether to show a progress bar; None: if standard error is a terminal.
        axis: Name of the axis whose lengths are measured.
        cache: Whether to use cached lengths if data and transform are unchanged. Lengths are always
            saved in the folder of the store, if there is one and it is writable.

    Returns:
        View of ``store`` whose ``lengths`` are those of the results.

    Raises:
        ConfigError: If ``num_workers`` is not an integer from 0, if the transform is not a function
            of two arguments or declares its lengths, if the store already has a transform, or if
            the transform cannot be sent to a process.
        WorkerDiedError: If a process ends before its work is done.
        StallError: If a process makes no progress for two minutes.
        DecodeError: If a result is invalid, or has no field along the axis. The message names the
            sequence.

    Examples:
        >>> def words(sequence, rng):
        ...     return {"tokens": np.unique(sequence["x"])}
        >>> measure_lengths([[5, 5, 5], [1, 2]], words).lengths.tolist()
        [1, 2]
    """
    opened = resolve_store(store)
    _check_arguments(opened, transform, num_workers)
    measurer = _LengthMeasurer(make_transform_applier(make_full_reader(opened, axis, transform), 0))
    cache_path = _cache_path(opened, transform, axis)
    lengths = _load_cached(cache_path, len(opened)) if cache and cache_path is not None else None
    if lengths is None:
        lengths = narrow_lengths(_measure(measurer, len(opened), num_workers, progress))
        if cache_path is not None:
            _save_cached(cache_path, lengths)
    return with_transform(opened, MeasuredTransform(transform, axis, lengths, TransformedRows))


def _check_arguments(store: Store, transform: Any, num_workers: int) -> None:
    if not isinstance(num_workers, int) or num_workers < 0:
        raise ConfigError(
            must_be("measure_lengths: `num_workers`", "an integer from 0", repr(num_workers))
        )
    carried = get_measured_transform(store)
    if carried is not None:
        raise ConfigError(
            f"measure_lengths: the data already carries {qualified_name(carried.transform)}. "
            "Combine both in one transform."
        )
    if length_map_for(transform) is not None:
        problem = "`.lengths` and needs no measuring"
        if is_bounded(transform):
            problem = "`.max_length`, so its lengths are random and cannot be measured"
        raise ConfigError(
            f"measure_lengths: {qualified_name(transform)} has {problem}. Pass it as `transform` "
            "to Loader or SequenceDataModule."
        )


def _measure(
    measurer: _LengthMeasurer, count: int, num_workers: int, progress: bool | None
) -> NDArray[np.int64]:
    lengths = np.empty(count, dtype=np.int64)
    chunks = [
        (first, min(first + CHUNK_SEQUENCES, count)) for first in range(0, count, CHUNK_SEQUENCES)
    ]
    requests = _make_requests(measurer.reader.store, chunks)
    with ExitStack() as stack:
        bar = stack.enter_context(progress_bar(progress, "measuring", count))
        results: Iterator[tuple[Columns, Axes]] = map(measurer.fetch, requests)
        if num_workers and chunks:
            results = stack.enter_context(
                _run_in_workers(measurer, num_workers, requests, len(chunks))
            )
        for (first, stop), (columns, _) in zip(chunks, results, strict=True):
            column: Any = columns[_LENGTHS]
            lengths[first:stop] = column[0]
            if bar is not None:
                bar.update(stop)
    return lengths


def _make_requests(store: Store, chunks: list[tuple[int, int]]) -> Iterator[StepRequest]:
    occurrences = count_occurrences(store)
    for chunk in chunks:
        yield _make_request(store, np.arange(*chunk, dtype=np.int64), occurrences)


def _make_request(
    store: Store, numbers: NDArray[np.int64], occurrences: Occurrences
) -> StepRequest:
    """Return the request for the results of sequences of the store."""
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    ids, own_occurrences = store.base_numbers(numbers), occurrences.number_spans(spans, 0)
    return StepRequest(spans, ids, epoch=0, occurrences=own_occurrences)


class TransformedRows:
    """Results of the transform of a view, for writing; a ``RowsByIndex``.

    Random numbers are those of the measurement, with seed 0 and epoch 0.

    Args:
        view: View with a transform.
        carried: Transform of the view.
        key: Name of the field of ids, if sequences have ids other than their indices; empty:
            ``id``.
    """

    def __init__(self, view: Store, carried: MeasuredTransform, key: str) -> None:
        self._view = view
        self._store = drop_transform(view)
        self._carried = carried
        self._key = key or ID_FIELD
        reader = make_full_reader(self._store, carried.axis, carried.transform)
        self._applier = make_transform_applier(reader, 0)
        self._occurrences = count_occurrences(self._store)

    @property
    def axes(self) -> dict[str, str | None]:
        """Field -> axis, for all fields of numbers except single numbers."""
        if not len(self):
            return {}
        results, _ = self._compute(np.zeros(1, dtype=np.int64))
        return {
            name: results.axis_of[name]
            for name, column in results.columns.items()
            if not isinstance(column, list)
            and (results.axis_of[name] is not None or _get_piece(column, 0)[0].ndim)
        }

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows_at(np.arange(len(self), dtype=np.int64))

    def rows_at(self, indices: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """Yield sequences by their indices in the view, in the given order.

        Raises:
            DecodeError: If a result has a length other than the measured one.
        """
        has_keys = has_ids(self._view)
        for first in range(0, len(indices), CHUNK_SEQUENCES):
            chunk = indices[first : first + CHUNK_SEQUENCES]
            results, keys = self._compute(chunk)
            for row in range(len(chunk)):
                sequence = {
                    name: _get_value(column, row, results.axis_of[name])
                    for name, column in results.columns.items()
                }
                yield {self._key: keys[row], **sequence} if has_keys else sequence

    def _compute(self, numbers: NDArray[np.int64]) -> tuple[TransformResults, list[str]]:
        """Return the results of sequences, and their ids.

        Raises:
            DecodeError: If a result has a length other than the measured one.
        """
        applier, reader = self._applier, self._applier.reader
        request = _make_request(self._store, numbers, self._occurrences)
        with StopIterationGuard("write_store: the view's transform", reader.transform):
            results = applier.compute_results(reader.read_inputs(request.spans), request)
        lengths = _lengths_along(applier, results, request)
        measured = self._carried.lengths[numbers]
        for row in np.flatnonzero(lengths != measured)[:1]:
            raise applier.make_error(
                int(request.ids[row]),
                f"returned {lengths[row]} timesteps along axis {self._carried.axis!r}, but "
                f"{measured[row]} were measured",
                remedy="Call `measure_lengths` again (`cache=False`), with a transform whose "
                "lengths do not change",
            )
        return results, get_base_keys(self._store, request.ids)


def _get_piece(column: Any, row: int) -> NDArray[Any]:
    """Return the array of a sequence's result, (timesteps, *shape)."""
    lengths = column.lengths
    piece: NDArray[Any] = column.cut(np.zeros_like(lengths), lengths)[row]
    return piece


def _get_value(column: Any, row: int, axis: str | None) -> Any:
    """Return a sequence's value of a field: an array, a number, ``str`` or ``bytes``."""
    if isinstance(column, list):
        return column[row]
    return _get_piece(column, row) if axis is not None else _get_piece(column, row)[0]


def _lengths_along(
    applier: TransformApplier, results: TransformResults, request: StepRequest
) -> NDArray[np.int64]:
    """Return the lengths of results along the axis, int64 (n,).

    Raises:
        DecodeError: If no field runs along the axis, or if two such fields differ in length.
    """
    axis, ids = applier.reader.axis, request.ids
    names = results.along(axis)
    if not names:
        raise applier.make_error(
            int(ids[0]),
            f"must return a field along axis {axis!r} to be measured, but returned "
            f"{', '.join(results.columns) or 'nothing'}",
        )
    lengths: NDArray[np.int64] = results.columns[names[0]].lengths
    for name in names[1:]:
        other_lengths = results.columns[name].lengths
        for piece in np.flatnonzero(other_lengths != lengths)[:1]:
            raise applier.make_error(
                int(ids[piece]),
                f"returned {other_lengths[piece]} timesteps of field {name!r} and "
                f"{lengths[piece]} of {names[0]!r}, which must be equal along axis {axis!r}",
                field=name,
            )
    return lengths


@contextmanager
def _run_in_workers(
    measurer: _LengthMeasurer, num_workers: int, requests: Iterator[StepRequest], count: int
) -> Iterator[Iterator[tuple[Columns, Axes]]]:
    """Yield the results of ``map(measurer.fetch, requests)``, computed in worker processes."""
    engine_options = EngineOptions(num_workers=min(num_workers, count))
    pools = WorkerPoolCache(measurer, engine_options)
    try:
        with pools.open_session() as session:
            session.begin(requests)
            yield (session.take() for _ in range(count))
    finally:
        pools.close()


def _cache_path(store: Store, transform: Any, axis: str) -> Path | None:
    """Return the file that caches lengths; None if there is no folder for it."""
    base = store.base if isinstance(store, SupportsBase) else store
    if not isinstance(base, SupportsLocality) or base.folder is None:
        return None
    digest = hashlib.sha256()
    values = describe_code("transform", transform).fixed  # of base classes and values, too
    name, code = qualified_name(transform), code_digest(transform)
    for component in (store.fingerprint, axis, name, code, values):
        digest.update(f"{component}\n".encode())
    return base.folder / f".seqdata-measured-{digest.hexdigest()[:32]}.npy"


def _load_cached(path: Path, count: int) -> NDArray[Any] | None:
    """Return cached lengths; None if there are none, or if they are not valid."""
    content = read_with_digest(path)
    if content is None:
        return None
    try:
        lengths: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError):  # of another version: measured again
        return None
    is_valid = isinstance(lengths, np.ndarray) and lengths.shape == (count,)
    return lengths if is_valid and lengths.dtype.kind == "u" else None


def _save_cached(path: Path, lengths: NDArray[Any]) -> None:
    """Write lengths to the cache, if its folder can be written."""
    content = io.BytesIO()
    np.save(content, lengths, allow_pickle=False)
    write_with_digest(path, content.getvalue())
