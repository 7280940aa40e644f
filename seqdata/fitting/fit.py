"""``fit``: one exact pass over a view for all statistics, in this process or in workers.

The rows of a field are cut into chunks of about equal size, wherever sequences end. Each chunk is
measured by itself, and the results are added as integers, so that the sum depends on neither chunks
nor workers nor order.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqdata.batch.axes import Axes
from seqdata.errors import ConfigError, DataError, must_be
from seqdata.fitting.field_chunk import Accumulator, Estimator, FieldChunk
from seqdata.fitting.statistics import VERSION, Statistics
from seqdata.loading.fetcher import FieldReader
from seqdata.loading.options import EngineOptions
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.declare import qualified_name
from seqdata.loading.workers.session import WorkerPoolCache
from seqdata.protocols import Columns, Store
from seqdata.resolve import resolve_store
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.fields import default_axis, has_numbers, is_text, make_unknown_name_error
from seqdata.storage.parts import find_carried_transform
from seqdata.storage.row_chunks import RowChunks, flatten_column
from seqdata.storage.span_store import find_contexts
from seqdata.storage.splitting import hash_sequences
from seqdata.storage.writing.progress import progress_bar

_CHUNK_NUMBERS = 1 << 17  # numbers of a chunk: intermediate arrays fit the cache
_CHUNK_SEQUENCES = 1 << 12  # sequences of a chunk, of fields with one value each
_LOWEST_HASHES = 64  # hashes of ids that are kept, by which fitting over other data is noticed
_PARTIALS = "partials"


def fit(
    view: Any,
    fields: Mapping[str, Estimator],
    *,
    num_workers: int = 0,
    progress: bool | None = None,
) -> Statistics:
    """Fit statistics on a view, such as the training part of a split.

    The statistics are exact. They are equal bit for bit for any shards, workers, ranks and order of
    sequences.

    Args:
        view: A store or view, a location, or sequences in memory.
        fields: Field -> estimator: ``MeanStd``, ``Robust``, ``Log1p``, ``Quantiles``, ``Labels`` or
            ``Vocabulary``.
        num_workers: Number of worker processes that read; 0: use this process.
        progress: Whether to show a progress bar; None: if standard error is a terminal.

    Raises:
        ConfigError: If a field does not exist or has values that its estimator does not support,
            or if the view has a transform.
        DataError: If an estimator does not allow a value, such as a NaN, or if a feature, or a
            group of ``by``, has no values. The message names the field.

    Examples:
        >>> from seqdata import MeanStd
        >>> stats = fit([[1.0, 2.0], [3.0]], {"x": MeanStd()})
        >>> float(stats["x"].mean), stats["x"].std.round(4).tolist()
        (2.0, 0.8165)
    """
    store = resolve_store(view)
    _check_arguments(store, fields, num_workers)
    accumulators = {
        name: statistic.start(name, store.fields[name]) for name, statistic in fields.items()
    }
    groups = {
        name: by for name, statistic in fields.items() if (by := getattr(statistic, "by", None))
    }
    for name, by in groups.items():
        _check_group_field(store, name, by)
    unfinished, number = accumulators, 0
    while unfinished:
        number += 1
        _run_pass(store, unfinished, groups, num_workers, progress, number)
        unfinished = {
            name: accumulator for name, accumulator in unfinished.items() if accumulator.end_pass()
        }
    plain = {name: accumulator.make_plain() for name, accumulator in accumulators.items()}
    for name, fitted in plain.items():
        if np.min(fitted.get("count", 1), initial=np.iinfo(np.int64).max) == 0:
            raise DataError(
                f"fit: field {name!r} must have at least one value of each feature to fit, but a "
                "feature has none. Fit over more sequences, or leave the field out."
            )
    return Statistics.from_plain({"version": VERSION, "fields": plain}, describe_view(store))


def describe_view(store: Store) -> dict[str, Any]:
    """Return data that identifies a view: see ``Statistics.fitted_on``."""
    hashes = np.unique(hash_sequences("fit", store, 0, None))
    return {
        "fingerprint": store.fingerprint,
        "sequences": len(store),
        "timesteps": int(np.sum(store.lengths, dtype=np.int64)),
        "lowest_hashes": hashes[:_LOWEST_HASHES].tolist(),
    }


def _check_arguments(store: Store, fields: Any, num_workers: Any) -> None:
    if not isinstance(num_workers, int) or isinstance(num_workers, bool) or num_workers < 0:
        needed = "an integer of at least 0"
        raise ConfigError(must_be("fit: `num_workers`", needed, repr(num_workers)))
    if not isinstance(fields, Mapping) or not fields:
        example = "Write e.g. {'x': MeanStd()}"
        found = f"{fields!r:.80}"
        raise ConfigError(f"fit: `fields` must map fields to estimators, but is {found}. {example}")
    for name, estimator in fields.items():
        if name not in store.fields:
            raise make_unknown_name_error("fit", "field", name, store.fields)
        if isinstance(estimator, type) or not hasattr(estimator, "start"):
            needed = "MeanStd(), Robust(), Log1p(), Quantiles(...), Labels() or Vocabulary()"
            raise ConfigError(must_be(f"fit: the estimator of {name!r}", needed, repr(estimator)))
    carried = find_carried_transform(store)
    if carried is not None:
        raise ConfigError(
            f"fit: the view must not carry a transform, but carries "
            f"{qualified_name(carried.transform)}. Statistics describe stored data; a transform's "
            "results are made with each batch, and may be random. Fit on the view before "
            "`measure_lengths`, or write the results as a store and fit on that."
        )


def _check_group_field(store: Store, name: str, by: str) -> None:
    if by not in store.fields:
        raise make_unknown_name_error(f"fit: `by` of {name!r}", "field", by, store.fields)
    field = store.fields[by]
    is_group = is_text(field) or has_numbers(field, "iu")
    if field.axis is not None or field.shape or not is_group:
        raise ConfigError(
            must_be(
                f"fit: `by` of {name!r}",
                "a field with one string or integer per sequence",
                f"{by!r}, with {field.dtype}{list(field.shape) or ''} per "
                f"{'sequence' if field.axis is None else 'timestep'}",
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class _ChunkMeasurer:
    """Measures the fields of one axis; it can be sent to a worker process.

    Attributes:
        reader: Reader of the fields.
        accumulators: Field -> accumulator.
        groups: Field -> its grouping field.
        collate: None: chunks are not collated.
    """

    reader: FieldReader
    accumulators: Mapping[str, Accumulator]
    groups: Mapping[str, str]
    collate: None = None

    def fetch(self, request: StepRequest) -> tuple[Columns, Axes]:
        """Return the partial results of a chunk, pickled, as a column of one value."""
        store, spans = self.reader.store, request.spans
        columns = store.read(spans, self.reader.unshifted_fields, axis=self.reader.axis)
        partials = {}
        for name, accumulator in self.accumulators.items():
            ragged = store.fields[name].axis is not None
            lengths = spans[:, 2] - spans[:, 1] if ragged else np.ones(len(spans), dtype=np.int64)
            by = self.groups.get(name)
            groups = None if by is None else flatten_column(columns[by])
            values = flatten_column(columns[name])
            if not isinstance(values, list):
                values = values.reshape(len(values), math.prod(values.shape[1:]))
            chunk = FieldChunk(store, name, values, lengths, spans[:, 0], groups)
            partials[name] = accumulator.measure(chunk)
        content = np.frombuffer(pickle.dumps(partials), dtype=np.uint8)
        return {_PARTIALS: ArrayColumn(content.dtype, (), [content])}, self.reader.axes


def _run_pass(
    store: Store,
    accumulators: Mapping[str, Accumulator],
    groups: Mapping[str, str],
    num_workers: int,
    progress: bool | None,
    number: int,
) -> None:
    """Read the data once, one axis after another."""
    names_of: dict[str | None, list[str]] = {}
    for name in accumulators:
        names_of.setdefault(store.fields[name].axis, []).append(name)
    title = "fitting" if number == 1 else f"fitting, pass {number}"
    for axis, names in names_of.items():
        used = {name: accumulators[name] for name in names}
        by = {groups[name] for name in names if name in groups}
        read_axis = default_axis(store.lengths_of) if axis is None else axis
        read_names = tuple(dict.fromkeys((*names, *sorted(by))))
        axes = Axes(read_axis, {name: store.fields[name].axis for name in read_names})
        reader = FieldReader(store, read_axis, read_names, None, 0, axes)
        chunks = _make_chunks(store, axis, names)
        with ExitStack() as stack:
            bar = stack.enter_context(progress_bar(progress, title, len(store)))
            measurer = _ChunkMeasurer(reader, used, groups)
            results = stack.enter_context(_measure(measurer, chunks, num_workers))
            for chunk, (columns, _) in enumerate(results):
                column: Any = columns[_PARTIALS]
                for name, partial in pickle.loads(column[0].tobytes()).items():
                    used[name].add(partial)
                if bar is not None:
                    bar.update(chunks.count_sequences(chunk + 1))


@contextmanager
def _measure(
    measurer: _ChunkMeasurer, chunks: RowChunks, num_workers: int
) -> Iterator[Iterator[tuple[Columns, Axes]]]:
    """Yield an iterator over the partial results of chunks, in their order."""
    requests = _make_requests(measurer.reader.store, chunks)
    if not num_workers or not len(chunks):
        yield map(measurer.fetch, requests)
        return
    pools = WorkerPoolCache(measurer, EngineOptions(num_workers=min(num_workers, len(chunks))))
    try:
        with pools.open_session() as session:
            session.begin(requests)
            yield (session.take() for _ in range(len(chunks)))
    finally:
        pools.close()


def _make_chunks(store: Store, axis: str | None, names: list[str]) -> RowChunks:
    if axis is None:
        return RowChunks.of_sequences(store, _CHUNK_SEQUENCES)
    width = sum(int(np.prod(store.fields[name].shape)) for name in names)
    return RowChunks.along(store, axis, max(1, _CHUNK_NUMBERS // width))


def _make_requests(store: Store, chunks: RowChunks) -> Iterator[StepRequest]:
    """Yield requests for the spans of chunks, without timesteps of context."""
    contexts = find_contexts(store)
    for spans in chunks:
        if contexts is not None:
            spans[:, 1] = np.maximum(spans[:, 1], contexts[spans[:, 0]])
            spans[:, 2] = np.maximum(spans[:, 1], spans[:, 2])
        yield StepRequest(spans, store.base_numbers(spans[:, 0]), epoch=0)
