"""Lengths of what a transform makes, measured once and kept beside the data.

Where nobody can say what a transform makes of a length, as for tokenizers, it is run over all
sequences once. Place in the flow: before planning. Reads: a store. Makes: a view that carries the
transform and the lengths of its results.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.identity import code_digest
from seqdata.index import DEFAULT_AXIS
from seqdata.loading.occurrences import Occurrences, occurrences_of
from seqdata.loading.reading import whole_reading
from seqdata.loading.request import Request
from seqdata.loading.transforming import Transforming, transforming_of
from seqdata.opening import store_of
from seqdata.protocols import Store, Transform
from seqdata.storage.arrow import ArrowStore
from seqdata.storage.commit import write_synced
from seqdata.storage.lengths import narrow
from seqdata.storage.views import Carried, View, carried_of, carrying
from seqdata.transforms import lengths_of, name_of

RUN = 64  # sequences that are transformed together
_AHEAD = 4  # runs that wait for each worker
Run = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Measuring:
    """A transform over a store, and which drawing of its sequence each one is."""

    transforming: Transforming
    occurrences: Occurrences

    @classmethod
    def of(cls, store: Store, axis: str, transform: Transform) -> _Measuring:
        reading = whole_reading(store, axis, transform)
        return cls(transforming_of(reading, 0), occurrences_of(store))


_WORKER: ContextVar[_Measuring] = ContextVar("worker")


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
        DecodeError: If a result does not fit, or has no field along the axis; naming the sequence.

    Example:
        >>> def words(sequence, rng):
        ...     return {"tokens": np.unique(sequence["x"])}
        >>> measure_lengths([[5, 5, 5], [1, 2]], words).lengths.tolist()
        [1, 2]
    """
    whole = store_of(store)
    _check(whole, transform, num_workers)
    measuring = _Measuring.of(whole, axis, transform)
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
    with ExitStack() as stack:
        tell = stack.enter_context(_told(progress, count))
        if num_workers and runs:
            found = _by_workers(stack, measuring.transforming, min(num_workers, len(runs)), runs)
        else:
            found = (_lengths(measuring, run) for run in runs)
        for (first, stop), one in zip(runs, found, strict=True):
            lengths[first:stop] = one
            tell(stop)
    return lengths


def _lengths(measuring: _Measuring, run: Run) -> NDArray[np.int64]:
    """Give the lengths of the results of a run of sequences, int64 (n,)."""
    spans = np.zeros((run[1] - run[0], 3), dtype=np.int64)
    spans[:, 0] = np.arange(*run)
    transforming = measuring.transforming
    reading = transforming.reading
    ids, drawings = reading.store.base_numbers(spans[:, 0]), measuring.occurrences.of(spans, 0)
    request = Request(spans, ids, epoch=0, occurrences=drawings)
    results = transforming.results(reading.pieces(spans), request)
    names = results.along(reading.axis)
    if not names:
        raise transforming.wrong(
            int(ids[0]),
            f"gave {', '.join(results.columns) or 'nothing'}, must give a field along axis "
            f"{reading.axis!r} to be measured",
        )
    lengths: NDArray[np.int64] = results.columns[names[0]].lengths
    for name in names[1:]:
        other = results.columns[name].lengths
        for piece in np.flatnonzero(other != lengths)[:1]:
            raise transforming.wrong(
                int(ids[piece]),
                f"gave field {name!r} {other[piece]} timesteps and {names[0]!r} {lengths[piece]}, "
                f"must be equal along axis {reading.axis!r}",
                field=name,
            )
    return lengths


def _by_workers(
    stack: ExitStack, transforming: Transforming, workers: int, runs: Iterable[Run]
) -> Iterator[NDArray[np.int64]]:
    """Give the same, made by processes, in the order of the runs."""
    try:
        job = pickle.dumps((transforming.reading.store, transforming.reading.transform,
                            transforming.reading.axis))  # fmt: skip
    except Exception as error:  # pickling runs anybody's code
        raise ConfigError(
            f"measure_lengths: {name_of(transforming.reading.transform)} or the store cannot be "
            f"sent to a process ({error}); write it as a function of a module, or pass "
            "num_workers=0"
        ) from error
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(job,))
    stack.callback(pool.shutdown, cancel_futures=True)
    return _in_order(pool, workers * _AHEAD, runs)


def _in_order(
    pool: ProcessPoolExecutor, most: int, runs: Iterable[Run]
) -> Iterator[NDArray[np.int64]]:
    waiting: deque[Future[NDArray[np.int64]]] = deque()
    try:
        for run in runs:
            waiting.append(pool.submit(_work, run))
            if len(waiting) >= most:
                yield waiting.popleft().result()  # ends: its worker answers, or dies
        while waiting:
            yield waiting.popleft().result()  # ends: its worker answers, or dies
    except BrokenProcessPool as error:
        raise ConfigError(
            "measure_lengths: a worker process ended before its work, must not; put the call of a "
            "script under `if __name__ == '__main__':`, or pass num_workers=0 to see the error"
        ) from error


def _begin(job: bytes) -> None:
    store, transform, axis = pickle.loads(job)  # our own, made a moment ago by our parent
    _WORKER.set(_Measuring.of(store, axis, transform))


def _work(run: Run) -> NDArray[np.int64]:
    return _lengths(_WORKER.get(), run)


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
    """Give kept lengths; None where there are none, or not these."""
    try:
        lengths: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # not there, or cut off: they are measured again
        return None
    right = isinstance(lengths, np.ndarray) and lengths.shape == (count,)
    return lengths if right and lengths.dtype.kind == "u" else None


def _keep(path: Path, lengths: NDArray[Any]) -> None:
    """Write lengths aside and rename them into place; a folder that cannot be written has none."""
    content = io.BytesIO()
    np.save(content, lengths, allow_pickle=False)
    aside = path.with_suffix(f".{uuid.uuid4().hex}.new")
    with suppress(OSError):
        try:
            write_synced(aside, content.getvalue())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


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
