"""Lengths of what a transform makes, measured once and kept beside the data.

Where nobody can say what a transform makes of a length, as for tokenizers, it is run over all
sequences once. Place in the flow: before planning. Reads: a store. Makes: a view that carries the
transform and the lengths of its results.
"""

from __future__ import annotations

import hashlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.code_digest import code_digest
from seqdata.errors import ConfigError
from seqdata.index import DEFAULT_AXIS
from seqdata.loading.field_reader import Reading, whole_reading
from seqdata.loading.options import PlayOptions
from seqdata.loading.step_requests import Request
from seqdata.loading.transforms.apply import Transforming, transforming_of
from seqdata.loading.transforms.declare import lengths_of, name_of
from seqdata.loading.transforms.results import Results
from seqdata.loading.transforms.rng import occurrences_of
from seqdata.loading.workers.pool_cache import Crews
from seqdata.protocols import Columns, Store, Transform
from seqdata.resolve_store import store_of
from seqdata.storage.array_column import PieceColumn
from seqdata.storage.arrow.store import ArrowStore
from seqdata.storage.digest_trailer import keep_sealed, read_sealed
from seqdata.storage.lengths import narrow
from seqdata.storage.selection import Carried
from seqdata.storage.views import View, carried_of, carrying

RUN = 64  # sequences that are transformed together
_LENGTHS = "lengths"


@dataclass(frozen=True, slots=True, eq=False)
class _Measuring:
    """What measures; it can be sent to a worker process.

    Attributes:
        transforming: Applies the transform.
        collate: Nothing is collated.
    """

    transforming: Transforming
    collate: None = None

    @property
    def reading(self) -> Reading:
        """What reads the sequences."""
        return self.transforming.reading

    def columns(self, request: Request) -> tuple[Columns, Axes]:
        """Give the lengths of the results, as the one piece of a column."""
        transforming, reading = self.transforming, self.reading
        results = transforming.results(reading.pieces(request.spans), request)
        lengths = _along(transforming, results, request)
        return {_LENGTHS: PieceColumn(lengths.dtype, (), [lengths])}, reading.axes


def measure_lengths(
    store: Any,
    transform: Transform,
    *,
    num_workers: int = 0,
    progress: bool | None = None,
    axis: str = DEFAULT_AXIS,
    cache: bool = True,
) -> View:
    """Run a transform over all sequences, and give the view that carries it and its lengths.

    The view goes where a store goes, without ``transform=``; views of it carry the transform on.
    Results have their random numbers from seed 0, epoch 0; their lengths must not depend on them.

    Args:
        store: A store, the location of one, or sequences in memory.
        transform: ``transform(sequence, rng) -> dict``, or a columnar one.
        num_workers: Processes; 0: this one. The transform must be a function of a module then.
        progress: Whether to show a bar; None: where standard error is a terminal.
        axis: The axis whose lengths are measured.
        cache: Whether lengths that are kept beside the data are used, where data and transform are
            as they were. They are kept in the folder of an Arrow store that can be written to.

    Raises:
        ConfigError: If the transform says its lengths itself, the store carries one already, or the
            transform cannot be sent to a process.
        WorkerDiedError: If a process ended before its work.
        StallError: If a process made no progress for two minutes.
        DecodeError: If a result does not fit, or has no field along the axis; naming the sequence.

    Examples:
        >>> def words(sequence, rng):
        ...     return {"tokens": np.unique(sequence["x"])}
        >>> measure_lengths([[5, 5, 5], [1, 2]], words).lengths.tolist()
        [1, 2]
    """
    whole = store_of(store)
    _check(whole, transform, num_workers)
    measuring = _Measuring(transforming_of(whole_reading(whole, axis, transform), 0))
    kept = _kept(whole, transform, axis)
    lengths = _load(kept, len(whole)) if cache and kept is not None else None
    if lengths is None:
        lengths = narrow(_measured(measuring, len(whole), num_workers, progress))
        if kept is not None:
            _keep(kept, lengths)
    return carrying(whole, Carried(transform, axis, lengths))


def _check(store: Store, transform: Any, num_workers: int) -> None:
    if not isinstance(num_workers, int) or num_workers < 0:
        raise ConfigError(
            f"measure_lengths: `num_workers` is {num_workers!r}, must be a whole number from 0"
        )
    carried = carried_of(store)
    if carried is not None:
        raise ConfigError(
            f"measure_lengths: the view carries {name_of(carried.transform)} already, must carry "
            "none; make one transform of both"
        )
    if lengths_of(transform) is not None:
        raise ConfigError(
            f"measure_lengths: {name_of(transform)} has `.lengths`, must not have to be measured; "
            "pass it as `transform` to Loader or SequenceDataModule"
        )


def _measured(
    measuring: _Measuring, count: int, num_workers: int, progress: bool | None
) -> NDArray[np.int64]:
    lengths = np.empty(count, dtype=np.int64)
    runs = [(first, min(first + RUN, count)) for first in range(0, count, RUN)]
    requests = _requests(measuring.reading.store, runs)
    with ExitStack() as stack:
        tell = stack.enter_context(_told(progress, count))
        found: Iterator[tuple[Columns, Axes]] = map(measuring.columns, requests)
        if num_workers and runs:
            found = stack.enter_context(_by_workers(measuring, num_workers, requests, len(runs)))
        for (first, stop), (columns, _) in zip(runs, found, strict=True):
            column: Any = columns[_LENGTHS]
            lengths[first:stop] = column[0]
            tell(stop)
    return lengths


def _requests(store: Store, runs: list[tuple[int, int]]) -> Iterator[Request]:
    occurrences = occurrences_of(store)
    for run in runs:
        spans = np.zeros((run[1] - run[0], 3), dtype=np.int64)
        spans[:, 0] = np.arange(*run)
        ids, drawings = store.base_numbers(spans[:, 0]), occurrences.of(spans, 0)
        yield Request(spans, ids, epoch=0, occurrences=drawings)


def _along(transforming: Transforming, results: Results, request: Request) -> NDArray[np.int64]:
    """Give the lengths of results along the axis, int64 (n,).

    Raises:
        DecodeError: If no field runs along it, or two of them differ.
    """
    axis, ids = transforming.reading.axis, request.ids
    names = results.along(axis)
    if not names:
        raise transforming.wrong(
            int(ids[0]),
            f"gave {', '.join(results.columns) or 'nothing'}, must give a field along axis "
            f"{axis!r} to be measured",
        )
    lengths: NDArray[np.int64] = results.columns[names[0]].lengths
    for name in names[1:]:
        other = results.columns[name].lengths
        for piece in np.flatnonzero(other != lengths)[:1]:
            raise transforming.wrong(
                int(ids[piece]),
                f"gave field {name!r} {other[piece]} timesteps and {names[0]!r} {lengths[piece]}, "
                f"must be equal along axis {axis!r}",
                field=name,
            )
    return lengths


@contextmanager
def _by_workers(
    measuring: _Measuring, num_workers: int, requests: Iterator[Request], count: int
) -> Iterator[Iterator[tuple[Columns, Axes]]]:
    """Give the same, made by processes, in the order of the requests."""
    options = PlayOptions(num_workers=min(num_workers, count))
    crews = Crews(measuring, options)
    try:
        with crews.run() as run:
            run.begin(requests)
            yield (run.take() for _ in range(count))
    finally:
        crews.close()


def _kept(store: Store, transform: Any, axis: str) -> Path | None:
    """Give the file that lengths are kept in; None: there is no folder for it."""
    base = store.base if isinstance(store, View) else store
    if not isinstance(base, ArrowStore):
        return None
    made = hashlib.sha256()
    for part in (store.fingerprint, axis, name_of(transform), code_digest(transform)):
        made.update(f"{part}\n".encode())
    return Path(base.location) / f".seqdata-measured-{made.hexdigest()[:32]}.npy"


def _load(path: Path, count: int) -> NDArray[Any] | None:
    """Return kept lengths; None if there are none, or they are not these."""
    content = read_sealed(path)
    if content is None:
        return None
    try:
        lengths: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError):  # of another version: they are measured again
        return None
    right = isinstance(lengths, np.ndarray) and lengths.shape == (count,)
    return lengths if right and lengths.dtype.kind == "u" else None


def _keep(path: Path, lengths: NDArray[Any]) -> None:
    """Keep lengths, named by what they were made from; not in a folder that cannot be written."""
    content = io.BytesIO()
    np.save(content, lengths, allow_pickle=False)
    keep_sealed(path, content.getvalue())


@contextmanager
def _told(progress: bool | None, total: int) -> Iterator[Callable[[int], None]]:
    """Give the function that is told how many sequences are done."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("measuring"), BarColumn(), TextColumn("{task.completed:,} of {task.total:,}"),
        TextColumn("{task.fields[rate]:,.0f} sequences/s"), TimeRemainingColumn(),
    )  # fmt: skip
    began = time.monotonic()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, rate=0.0)
        yield lambda done: bar.update(
            task, completed=done, rate=done / max(1e-9, time.monotonic() - began)
        )
