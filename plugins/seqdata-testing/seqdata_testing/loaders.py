"""Checks of whole loaders: they must deliver the plan, with the content of the store.

Every check takes ``make(world)``, which returns a loader, and makes a loader per rank in one
process. The rows of each rank are recorded with digests of their content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import IncompleteEpochError
from seqdata.protocols import Store
from seqdata.sharing import World
from seqdata_testing import ConformanceError
from seqdata_testing.recorder import LoaderLike, Make, Row, record_rows


def check_content(make: Make, store: Store, *, size: int = 1, axis: str = "time") -> None:
    """Check that each row has the values of the store, and padding is zero.

    Args:
        make: Returns the loader of a rank, without transform or shift.
        store: The base store.
        size: World size.
        axis: The axis that is planned on.

    Raises:
        ConformanceError: If a value differs.
    """
    for rank in range(size):
        for batch in make(World(rank, size)):
            batch.validate()
            spans, _ = _spans_of(batch)
            columns = store.read(spans, list(batch.data), axis=axis)
            for name, values in batch.data.items():
                _check_field(f"loader: batch {batch.number}", batch, name, values, columns[name])


def check_steps(make: Make, sizes: Sequence[int]) -> None:
    """Check that ranks deliver equally many batches, as many as ``len`` returns (I2).

    Raises:
        ConformanceError: If a rank delivers a different number of batches.
    """
    for size in sizes:
        loaders = _loaders(make, size)
        promised = [len(loader) for loader in loaders]
        found = [sum(1 for _ in loader) for loader in loaders]
        if len({*promised, *found}) > 1:
            raise ConformanceError(
                f"loader: on {size} ranks `len` is {promised} and {found} batches come, but all "
                "must be equal"
            )


def check_worlds(make: Make, sizes: Sequence[int], *, epochs: int = 1) -> None:
    """Check that all worlds deliver the same rows, in an order that one rank continues (I1, I3).

    The order may depend on the number of ranks with which an epoch begins; a resume on another
    number of ranks keeps it.

    Raises:
        ConformanceError: If a world delivers other rows, or one rank continues in another order.
    """
    alone = _loaders(make, 1)
    due = [_rows(_steps(alone)) for _ in range(epochs)]
    for size in sizes:
        loaders = _loaders(make, size)
        for epoch in range(epochs):
            steps = _steps(loaders)
            first = _rows([next(steps)])
            state = _state(loaders)
            rows = [*first, *_rows(steps)]
            where = f"loader: epoch {epoch} on {size} ranks"
            _compare(where, _sort_rows(rows), _sort_rows(due[epoch]))
            if len(rows) > len(first):
                later = _rows(_steps(_loaders(make, 1, state)))
                _compare(f"{where}, continued by one", [*first, *later], rows)


def check_totals(make: Make, size: int) -> None:
    """Check that each rank counts its scored tokens, and that all ranks know their sum.

    Raises:
        ConformanceError: If ``num_tokens`` or ``global_num_tokens`` differs from the delivered
            tokens.
    """
    for number, step in enumerate(_steps(_loaders(make, size))):
        scored = [int(batch.score.sum()) for batch in step]
        counted = [batch.num_tokens for batch in step]
        overall = {batch.global_num_tokens for batch in step}
        if counted != scored or overall != {sum(scored)}:
            raise ConformanceError(
                f"loader: step {number} on {size} ranks has num_tokens {counted} and "
                f"global_num_tokens {sorted(overall)}, but must have {scored} and {sum(scored)}"
            )


def check_lane_flags(make: Make, size: int) -> None:
    """Check that ``reset`` marks where sequences begin, and idle rows have no weight (I6).

    Args:
        make: Returns the loader of a rank, over a plan with lanes that carries no state from one
            sequence to the next.
        size: World size.

    Raises:
        ConformanceError: If ``reset`` or ``weight`` is wrong, or a batch has no lanes.
    """
    for number, step in enumerate(_steps(_loaders(make, size))):
        for rank, batch in enumerate(step):
            where = f"loader: rank {rank} of {size}, step {number}"
            if batch.lanes is None or batch.reset is None:
                raise ConformanceError(f"{where} has no lanes, but must have")
            due = ((batch.start == 0) & (batch.lengths > 0)).tolist()
            if batch.reset.tolist() != due:
                raise ConformanceError(
                    f"{where} has `reset` {batch.reset.tolist()}, but must be {due}: at timestep 0 "
                    "of a sequence, never where a lane is idle"
                )
            if bool(((batch.weight > 0) & (batch.lengths == 0)).any()):
                raise ConformanceError(
                    f"{where} has weights {batch.weight.tolist()} for lengths "
                    f"{batch.lengths.tolist()}, but must be 0 where a lane is idle"
                )


def check_resumes(make: Make, size: int, cuts: Sequence[int], *, epoch: int = 0) -> None:
    """Check that new loaders continue exactly where others stopped (I4).

    Args:
        make: Returns the loader of a rank.
        size: World size.
        cuts: Increasing numbers of steps after which all loaders are replaced; the state is
            converted to JSON and back.
        epoch: Index of the epoch that is interrupted; earlier epochs are played first.

    Raises:
        ConformanceError: If a rank delivers other rows than without a stop.
    """
    uninterrupted = _loaders(make, size)
    for _ in range(epoch):
        _rows(_steps(uninterrupted))
    state = _state(uninterrupted)
    due = [[_rows([[batch]]) for batch in step] for step in _steps(uninterrupted)]
    following = [_rows([[batch]]) for batch in next(_steps(uninterrupted))]
    done = 0
    for cut in [*(min(cut, len(due)) for cut in cuts), len(due)]:
        loaders = _loaders(make, size, state)
        steps = _steps(loaders)
        for step in range(done, cut):
            for rank, batch in enumerate(next(steps)):
                where = f"loader: rank {rank} of {size}, step {step}, resumed at step {done}"
                _compare(where, _rows([[batch]]), due[step][rank])
        state, done = _state(loaders), cut
    again = [_rows([[batch]]) for batch in next(_steps(_loaders(make, size, state)))]
    if again != following:
        raise ConformanceError(
            f"loader: a state of the end of epoch {epoch} continues with {again[0][:1]}, but must "
            f"continue with the next epoch, {following[0][:1]}"
        )


def check_changing_worlds(make: Make, legs: Sequence[tuple[int, int]]) -> None:
    """Check that an epoch on changing numbers of ranks delivers each row once, in order (I5).

    Args:
        make: Returns the loader of a rank.
        legs: (number of ranks, number of steps) of each part; the last one plays to the end.

    Raises:
        ConformanceError: If rows are lost, repeated, or in another order.
    """
    begins = next((size for size, most in legs[:-1] if most), legs[-1][0])
    due = _rows(_steps(_loaders(make, begins)))  # the others continue in its order
    found: list[Row] = []
    state: dict[str, Any] | None = None
    for leg, (size, most) in enumerate(legs):
        loaders = _loaders(make, size, state)
        limit = None if leg == len(legs) - 1 else most
        begun = state is not None and int(state.get("epoch", 0)) > 0
        steps = [] if begun else _steps(loaders)  # an earlier world has finished the epoch
        for number, step in enumerate(steps if limit != 0 else []):
            found += _rows([step])
            state = _state(loaders)
            if limit is not None and number + 1 >= limit:
                break
    where = f"loader: worlds of {[size for size, _ in legs]} ranks"
    alone = _rows(_steps(_loaders(make, 1)))
    _compare(where, _sort_rows(found), _sort_rows(alone))
    _compare(where, found, due)


def check_no_short_epoch(make: Make) -> None:
    """Check that an epoch whose loader is shut down ends with an error, not silently (I7).

    Raises:
        ConformanceError: If it ends early without an error.
    """
    loader = make(World(0, 1))
    planned, delivered = len(loader), 0
    try:
        for _ in loader:
            delivered += 1
            loader.shutdown()
    except IncompleteEpochError:
        return
    if delivered != planned:
        raise ConformanceError(
            f"loader: ends after {delivered} of {planned} batches, but must raise "
            "IncompleteEpochError"
        )


def _loaders(make: Make, size: int, state: dict[str, Any] | None = None) -> list[LoaderLike]:
    loaders = [make(World(rank, size)) for rank in range(size)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return loaders


def _steps(loaders: Sequence[LoaderLike]) -> Iterator[list[SequenceBatch]]:
    for number, step in enumerate(zip_longest(*loaders)):
        if any(batch is None for batch in step):
            ended = [rank for rank, batch in enumerate(step) if batch is None]
            raise ConformanceError(
                f"loader: ranks {ended} of {len(loaders)} end before step {number}, but must have "
                "as many steps as the others"
            )
        yield list(step)


def _rows(steps: Any) -> list[Row]:
    return [row for step in steps for batch in step for row in record_rows(batch)]


def _state(loaders: Sequence[LoaderLike]) -> dict[str, Any]:
    states = {json.dumps(loader.state_dict(), sort_keys=True) for loader in loaders}
    if len(states) > 1:
        raise ConformanceError(f"loader: ranks must save the same state, but save {sorted(states)}")
    state: dict[str, Any] = json.loads(states.pop())
    return state


def _sort_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows sorted, without the numbers of their batches."""
    return sorted(row._replace(number=0) for row in rows)


def _compare(where: str, found: Sequence[Row], due: Sequence[Row]) -> None:
    if list(found) == list(due):
        return
    place = next(
        (
            k
            for k, (actual, expected) in enumerate(zip(found, due, strict=False))
            if actual != expected
        ),
        min(len(found), len(due)),
    )
    raise ConformanceError(
        f"{where}: {len(found)} rows come, row {place} is {found[place : place + 1]}, but must be "
        f"{len(due)} rows, {due[place : place + 1]}"
    )


def _spans_of(batch: SequenceBatch) -> tuple[NDArray[np.int64], list[int]]:
    """Return the spans of a batch, int64 (n, 3), and the offsets of rows in them, rows + 1."""
    if batch.segments is None:
        spans = np.stack([batch.ids, batch.start, batch.start + batch.lengths], axis=1)
        return spans, list(range(len(batch) + 1))
    segments = batch.segments.numpy()
    edges = np.searchsorted(segments[:, 0], np.arange(len(batch) + 1))
    return segments[:, 1:], edges.tolist()


def _check_field(where: str, batch: SequenceBatch, name: str, values: Any, column: Any) -> None:
    edges = _spans_of(batch)[1]
    for row, (first, stop) in enumerate(pairwise(edges)):
        if isinstance(values, list):
            is_same = values[row] == column[first]
        else:
            actual = values[row].numpy()
            if batch.axes.along(name) is None:
                is_same = actual.tobytes() == column[first][0].tobytes()
            else:
                expected = np.concatenate([column[span] for span in range(first, stop)])
                is_same = actual[: len(expected)].tobytes() == expected.tobytes()
                is_same = is_same and not actual[len(expected) :].any()
        if not is_same:
            raise ConformanceError(
                f"{where}: row {row} of field {name!r} differs from sequence "
                f"{int(batch.ids[row])} of the store, or its padding is not 0"
            )
