"""Ledger of an epoch: the sequences that are not trained exactly once and completely, by id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.sharing import Tail, World, share
from seqdata.storage.local_files import open_atomically
from seqdata.storage.writing.table_files import check_suffix

STDOUT = "-"
_CHUNK = 1 << 14  # sequences whose ids are looked up together


@dataclass(frozen=True, slots=True)
class UnevenBatch:
    """A batch that the last step of an epoch leaves out or repeats.

    Attributes:
        batch: Index in the plan.
        step: Step in which the batch is repeated; None if it is dropped.
        rank: Rank that repeats the batch; None if it is dropped.
    """

    batch: int
    step: int | None = None
    rank: int | None = None


def find_uneven_batches(plan: Plan, ranks: int, tail: Tail) -> list[UnevenBatch]:
    """Return the batches that a number of ranks leaves out or repeats, in the order of the plan.

    Raises:
        PlanError: If ``drop`` would leave out all of them.
    """
    count = len(plan)
    if plan.lanes or not count or tail == "fill":
        return []
    steps = len(share(plan, World(0, ranks), tail=tail))
    if tail == "drop":
        return [UnevenBatch(batch) for batch in range(steps * ranks, count)]
    missing = range(count - (steps - 1) * ranks, ranks)
    last = {rank: share(plan, World(rank, ranks), tail=tail)[steps - 1] for rank in missing}
    return [UnevenBatch(step.number, steps - 1, rank) for rank, step in last.items()]


def iter_ledger(
    index: SequenceIndex, plans: Mapping[int, Plan], axis: str, tail: Tail
) -> Iterator[dict[str, Any]]:
    """Yield the ledger's lines: ``dropped``, ``split``, ``truncated``, ``left_out``, ``repeated``.

    Args:
        index: Index of the planned sequences.
        plans: Number of ranks -> the plan of an epoch that begins on that number, whose last step
            is examined; at least one.
        axis: Axis that was planned on.
        tail: Treatment of an uneven last step.

    Raises:
        PlanError: If ``tail`` leaves out everything on one of the numbers of ranks.
    """
    plan = next(iter(plans.values()))
    report = plan.report
    pieces, used = _measure_use(plan, len(index), np.union1d(report.split, report.truncated))
    yield from _iter_sequences(index, axis, "dropped", report.dropped, lambda _: {})
    yield from _iter_sequences(
        index, axis, "split", report.split, lambda number: {"pieces": int(pieces[number])}
    )
    yield from _iter_sequences(
        index, axis, "truncated", report.truncated, lambda number: {"kept": int(used[number])}
    )
    for ranks, world_plan in plans.items():
        for uneven in find_uneven_batches(world_plan, ranks, tail):
            yield from _iter_spans(index, world_plan, ranks, uneven)


def write_ledger(lines: Iterator[dict[str, Any]], target: str) -> int:
    """Write lines of JSON to a file or to stdout, and return their number.

    Raises:
        ConfigError: If the file is named as a table of another kind.
        OSError: If the file cannot be written.
    """
    count = 0
    if target == STDOUT:
        for count, line in enumerate(lines, 1):  # noqa: B007, the last number is returned
            click.echo(json.dumps(line))
        return count
    check_suffix("plan: `--ledger`", target, ".jsonl")
    path = Path(target).resolve()  # the file that a link leads to
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_atomically(path) as file:
        for count, line in enumerate(lines, 1):  # noqa: B007, the last number is returned
            file.write(json.dumps(line).encode() + b"\n")
    return count


def _measure_use(
    plan: Plan, count: int, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of spans and of used timesteps of some sequences, int64 (count,) each.

    Timesteps that occur several times, as in draws with replacement or overlapping windows, count
    once.
    """
    pieces, used = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    if not len(numbers):
        return pieces, used
    is_needed = np.zeros(count, dtype=np.bool_)
    is_needed[numbers] = True
    found = [np.empty((0, 3), dtype=np.int64)]
    for batch in range(len(plan)):
        spans = plan.batch(batch).spans
        found.append(spans[is_needed[spans[:, 0]] & (spans[:, 2] > spans[:, 1])])
    spans = np.unique(np.concatenate(found), axis=0)  # by sequence and start
    np.add.at(pieces, spans[:, 0], 1)
    np.add.at(used, spans[:, 0], _count_new_timesteps(spans))
    return pieces, used


def _count_new_timesteps(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of timesteps of each span that no earlier span has, int64 (n,).

    Args:
        spans: int64 (n, 3), sequence, start, stop, by sequence and start.
    """
    sequences, starts, stops = spans.T
    width = int(stops.max(initial=0)) + 1
    shifts = np.cumsum(np.diff(sequences, prepend=sequences[:1]) > 0) * width
    reached = np.maximum.accumulate(stops + shifts)  # a sequence begins where none before it ends
    before = np.concatenate([[0], reached[:-1]])[: len(spans)] - shifts
    new: NDArray[np.int64] = np.maximum(stops - np.maximum(starts, before), 0)
    return new


def _iter_sequences(
    index: SequenceIndex,
    axis: str,
    kind: str,
    numbers: NDArray[np.int64],
    describe: Callable[[int], dict[str, int]],
) -> Iterator[dict[str, Any]]:
    for first in range(0, len(numbers), _CHUNK):
        chunk = numbers[first : first + _CHUNK]
        named = zip(
            chunk.tolist(),
            _name_sequences(index, chunk),
            index.at(axis, chunk).tolist(),
            strict=True,
        )
        for number, name, length in named:
            yield {
                "what": kind,
                "number": number,
                "id": name,
                "length": length,
                **describe(number),
            }


def _iter_spans(
    index: SequenceIndex, plan: Plan, ranks: int, uneven: UnevenBatch
) -> Iterator[dict[str, Any]]:
    where: dict[str, Any] = {"ranks": ranks, "batch": uneven.batch}
    if uneven.rank is not None:
        where |= {"step": uneven.step, "rank": uneven.rank}
    kind = "left_out" if uneven.rank is None else "repeated"
    spans = plan.batch(uneven.batch).spans
    for (number, start, stop), name in zip(
        spans.tolist(), _name_sequences(index, spans[:, 0]), strict=True
    ):
        yield {"what": kind, **where, "number": number, "id": name, "start": start, "stop": stop}


def _name_sequences(index: SequenceIndex, numbers: NDArray[np.int64]) -> Sequence[str | None]:
    return [None] * len(numbers) if index.keys is None else list(index.keys(numbers.tolist()))
