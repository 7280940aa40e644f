"""Checks of a plan and of the policy that makes it: coverage, counts, budgets, purity.

Every check raises a ConformanceError with the found and the required state. They are for small
plans, because they make whole tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Plan
from seqdata.plan_table import ArrayTable, PlanBatch
from seqdata.planning.policy import as_policy
from seqdata.protocols import Policy
from seqdata.report import PlanReport
from seqdata_testing import ConformanceError
from seqdata_testing.simulate import row_lengths, scored_spans, without_context

_TOLERANCE = 1e-9  # of an expected number of draws: so near it is an integer
MANY_BATCHES = 16  # from here on another seed surely gives another order


def check_policy(
    policy: Policy, index: SequenceIndex, *, seed: int = 0, shuffled: bool | None = True
) -> None:
    """Check that plans of a policy are deterministic, have known sizes, and cover all sequences.

    Args:
        policy: The policy, which must plan each timestep once, or report why not. A policy that
            draws sequences (``expected_draws``) must plan each as often as expected, rounded down
            or up. For a policy with ``repeats_sequences``, or with windows (``crop_numbers``),
            coverage is not checked.
        index: The lengths to plan.
        seed: Seed of the plans.
        shuffled: Whether epochs and seeds must differ in their order; None: they may.

    Raises:
        ConformanceError: If a check fails.
    """
    check_constant_count(policy, index, seeds=(seed, seed + 1))
    check_pure(policy, index, seed=seed, epoch=1, shuffled=shuffled)
    for epoch in (0, 1):
        plan = policy.plan(index, seed=seed, epoch=epoch)
        check_table(plan)
        asked: Any = as_policy(policy)
        if asked.draws_sequences:
            check_draws(plan, index, asked.expected_draws(index), axis=policy.axis)
        elif not asked.repeats_sequences and not asked.cuts_windows:
            check_covers(plan, index, axis=policy.axis)


def check_table(plan: Plan) -> None:
    """Check that a plan's arrays, its single batches, its totals and its report agree.

    Raises:
        ConformanceError: If two of them differ.
    """
    table = plan.as_arrays()
    spans, rows, offsets = table.spans, table.rows, table.offsets
    if len(offsets) != len(plan) + 1:
        raise ConformanceError(
            f"plan: `offsets` names {len(offsets) - 1} batches, but must be len(plan) = {len(plan)}"
        )
    if (np.diff(offsets) < 1).any():
        empty = int(np.argmin(np.diff(offsets)))
        raise ConformanceError(f"plan: batch {empty} has no rows, but must have at least one")
    lengths = spans[:, 2] - spans[:, 1]
    if (lengths < (0 if plan.lanes else 1)).any():
        first = int(np.argmin(lengths))
        raise ConformanceError(
            f"plan: span {first} is {spans[first].tolist()}, but must hold a timestep; only an "
            "idle lane is empty"
        )
    for number in _spread(len(plan)):
        _check_batch(plan, number, spans, rows, offsets)
    _check_report(plan, spans, rows, offsets)


def check_covers(plan: Plan, index: SequenceIndex, *, axis: str = DEFAULT_AXIS) -> None:
    """Check that each timestep is scored once, except for those that the report declares (I1).

    Args:
        plan: A plan of whole sequences, their parts or their chunks.
        index: Index that it was planned over.
        axis: The axis that was planned on.

    Raises:
        ConformanceError: If a timestep is missing or repeated, or the report is wrong.
    """
    targets_only = 0  # of a stream's end
    if plan.carry:
        index, targets_only = index.unshifted(axis)
    lengths = np.asarray(index.run(axis, 0, len(index)), dtype=np.int64)
    _check_coverage(_find_scored(plan), lengths, plan.report, targets_only)


def check_draws(
    plan: Plan,
    index: SequenceIndex,
    expected: NDArray[np.float64],
    *,
    axis: str = DEFAULT_AXIS,
) -> None:
    """Check that each sequence is drawn as often as expected, rounded down or up, and whole.

    Args:
        plan: A plan of whole sequences or their parts, some of them several times.
        index: Index that it was planned over.
        expected: float64 (n,), average number of draws of each sequence.
        axis: The axis that was planned on.

    Raises:
        ConformanceError: If a sequence is drawn more or less often, its timesteps are drawn
            unequally often, or a draw is incomplete.
    """
    spans, times = np.unique(_find_scored(plan), axis=0, return_counts=True)
    most, least = (np.zeros(len(index), dtype=np.int64) for _ in range(2))
    np.maximum.at(most, spans[:, 0], times)
    least[:] = most
    np.minimum.at(least, spans[:, 0], times)
    uneven = np.flatnonzero(most != least)
    if len(uneven):
        number = int(uneven[0])
        raise ConformanceError(
            f"plan: timesteps of sequence {number} are drawn {int(least[number])} to "
            f"{int(most[number])} times, but must all be drawn equally often"
        )
    wrong = np.flatnonzero(
        (most < np.floor(expected + _TOLERANCE)) | (most > np.ceil(expected - _TOLERANCE))
    )
    if len(wrong):
        number = int(wrong[0])
        raise ConformanceError(
            f"plan: sequence {number} is drawn {int(most[number])} times, but must be drawn "
            f"{expected[number]:.6g} times, rounded down or up"
        )
    lengths = np.where(most > 0, index.run(axis, 0, len(index)), 0)
    _check_coverage(spans, lengths, plan.report, 0)


def _check_coverage(
    spans: NDArray[np.int64], lengths: NDArray[np.int64], report: PlanReport, targets_only: int
) -> None:
    """Check that spans have each timestep once, except for those that a report declares.

    Args:
        spans: int64 (n, 3), the scored spans.
        lengths: int64 (sequences,), number of timesteps of each sequence.
        report: Report of the plan.
        targets_only: Number of timesteps at the end of a stream that are only targets.
    """
    spans = spans[np.lexsort((spans[:, 2], spans[:, 1], spans[:, 0]))]
    numbers, starts, stops = spans.T
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))  # first span of each sequence
    before = np.concatenate([[0], stops[:-1]])
    cut = np.zeros(len(lengths), dtype=np.bool_)
    cut[report.truncated] = True
    ends = np.zeros(len(lengths), dtype=np.int64)
    np.maximum.at(ends, numbers, stops)
    at_end = cut[numbers[firsts]] & (ends == lengths)[numbers[firsts]]  # the beginning is cut off
    before[firsts] = np.where(at_end, starts[firsts], 0)
    is_whole = np.zeros(len(lengths), dtype=np.bool_)
    is_whole[numbers[firsts]] = (starts[firsts] == 0) & (ends == lengths)[numbers[firsts]]
    wrong = np.flatnonzero(starts != before)
    if len(wrong):
        number = int(numbers[wrong[0]])
        raise ConformanceError(
            f"plan: sequence {number}: the span after timestep {int(before[wrong[0]])} begins at "
            f"{int(starts[wrong[0]])}, but each timestep must be scored once"
        )
    expected = lengths.copy()
    expected[report.dropped] = 0
    fits = np.where(cut, (ends > 0) & ~is_whole, ends == expected)
    if targets_only:
        fits = ends <= expected
        fits &= int((expected - ends).sum()) == min(targets_only, int(expected.sum()))
    if not fits.all():
        number = int(np.argmin(fits))
        raise ConformanceError(
            f"plan: sequence {number} of {int(lengths[number])} timesteps is planned up to "
            f"{int(ends[number])}, but must be whole, or in the report as dropped or truncated"
        )


def _find_scored(plan: Plan) -> NDArray[np.int64]:
    """Return the scored parts of all spans, without empty ones, int64 (n, 3)."""
    if not plan.carry:
        spans = plan.spans
        spans = spans[spans[:, 1] < spans[:, 2]]
        return without_context(plan, 0, spans, None)
    parts = [scored_spans(plan, number, plan.batch(number)) for number in range(len(plan))]
    spans = np.concatenate([np.empty((0, 3), dtype=np.int64), *parts])
    return spans[spans[:, 1] < spans[:, 2]]


def check_budget(plan: Plan, max_tokens: int, max_rows: int | None = None) -> None:
    """Check that no batch, including padding, exceeds a budget of timesteps or rows.

    Raises:
        ConformanceError: If a batch exceeds it.
    """
    for number in range(len(plan)):
        batch = plan.batch(number)
        lengths = row_lengths(batch.spans, batch.rows)
        cost = int(lengths.max()) * len(lengths)
        if cost > max_tokens:
            raise ConformanceError(
                f"plan: batch {number} has {cost} timesteps after padding, but must have at "
                f"most {max_tokens}"
            )
        if max_rows is not None and len(lengths) > max_rows:
            raise ConformanceError(
                f"plan: batch {number} has {len(lengths)} rows, but must have at most {max_rows}"
            )


def check_constant_count(
    policy: Policy,
    index: SequenceIndex,
    *,
    epochs: Iterable[int] = range(4),
    seeds: Iterable[int] = (0, 1),
) -> None:
    """Check that every epoch of every seed has ``policy.num_batches(index)`` batches.

    If the epochs of a policy vary, each must have the number of batches of that epoch.

    Raises:
        ConformanceError: If an epoch has a different number of batches.
    """
    pairs = [(seed, epoch) for seed in seeds for epoch in epochs]
    for seed, epoch in pairs:
        count = as_policy(policy).count_batches(index, seed=seed, epoch=epoch)
        plan = policy.plan(index, seed=seed, epoch=epoch)
        if len(plan) != count:
            raise ConformanceError(
                f"policy: epoch {epoch} of seed {seed} has {len(plan)} batches, but "
                f"`count_batches` returns {count}. Both must be equal"
            )


def check_pure(
    policy: Policy,
    index: SequenceIndex,
    *,
    seed: int = 0,
    epoch: int = 1,
    shuffled: bool | None = True,
) -> None:
    """Check that a plan depends only on lengths, policy, seed and epoch.

    Args:
        policy: The policy.
        index: The lengths.
        seed: Seed of the plan.
        epoch: Index of the epoch.
        shuffled: Whether another seed or epoch must have another order, or (False) the same order;
            None: either.

    Raises:
        ConformanceError: If equal inputs have different plans or fingerprints, different plans have
            the same fingerprint, or an order is the same that must differ.
    """
    plan = policy.plan(index, seed=seed, epoch=epoch)
    fresh = replace(index, _memo={})
    again = policy.plan(fresh, seed=seed, epoch=epoch)
    table = plan.as_arrays()
    if not _is_same(table, again.as_arrays()) or plan.lanes != again.lanes:
        raise ConformanceError(
            f"policy: epoch {epoch} of seed {seed} was planned twice and differs, but must be the "
            "same"
        )
    if plan.fingerprint != again.fingerprint:
        raise ConformanceError(
            "policy: equal plans have fingerprints "
            f"{plan.fingerprint} and {again.fingerprint}, but must have one"
        )
    pairs = [(seed + 1, epoch), (seed, epoch + 1), (epoch + 1, seed + 1)]
    pairs = [pair for pair in pairs if pair != (seed, epoch)]
    for pair in pairs:
        changed = policy.plan(index, seed=pair[0], epoch=pair[1])
        is_same = _is_same(table, changed.as_arrays()) and plan.lanes == changed.lanes
        if not is_same and changed.fingerprint == plan.fingerprint:
            raise ConformanceError(
                f"policy: (seed, epoch) {(seed, epoch)} and {pair} have different plans and the "
                "same fingerprint, but must have different ones"
            )
        if shuffled and is_same and len(plan) >= MANY_BATCHES:
            raise ConformanceError(
                f"policy: (seed, epoch) {(seed, epoch)} and {pair} have the same order, but must "
                "differ. Draw from both"
            )
        if shuffled is False and not is_same:
            raise ConformanceError(
                f"policy: (seed, epoch) {(seed, epoch)} and {pair} differ in order, but must not, "
                "since it is not shuffled"
            )


def _is_same(table: ArrayTable, other: ArrayTable) -> bool:
    """Return whether two tables have the same batches in the same order."""
    if table.rows is None or other.rows is None:
        is_same_rows = table.rows is other.rows
    else:
        is_same_rows = np.array_equal(table.rows, other.rows)
    return (
        is_same_rows
        and np.array_equal(table.spans, other.spans)
        and np.array_equal(table.offsets, other.offsets)
    )


def _check_batch(
    plan: Plan,
    number: int,
    spans: NDArray[np.int64],
    rows: NDArray[np.int64] | None,
    offsets: NDArray[np.int64],
) -> None:
    batch = plan.batch(number)
    first, stop = int(offsets[number]), int(offsets[number + 1])
    edges = None
    if rows is not None:
        edges = rows[first : stop + 1] - rows[first]
        first, stop = int(rows[first]), int(rows[stop])
    is_same = np.array_equal(batch.spans, spans[first:stop])
    is_same_rows = edges is batch.rows or (
        edges is not None and batch.rows is not None and np.array_equal(batch.rows, edges)
    )
    if not (is_same and is_same_rows):
        raise ConformanceError(
            f"plan: batch({number}) differs from its place in `spans`, but must be the same"
        )
    scored, real = _totals(plan, number, batch)
    if plan.totals(number, number + 1) != (scored, real):
        raise ConformanceError(
            f"plan: totals of batch {number} are {plan.totals(number, number + 1)}, but must be "
            f"{(scored, real)} scored timesteps and rows"
        )
    following = plan.prepare(number)
    if not number < following <= len(plan):
        raise ConformanceError(
            f"plan: prepare({number}) is {following}, but must be a later batch, at most "
            f"{len(plan)}"
        )


def _check_report(
    plan: Plan,
    spans: NDArray[np.int64],
    rows: NDArray[np.int64] | None,
    offsets: NDArray[np.int64],
) -> None:
    report = plan.report
    lengths = row_lengths(spans, rows)
    costs = [
        int(lengths[first:stop].max()) * int(stop - first) for first, stop in pairwise(offsets)
    ]
    real = spans[spans[:, 1] < spans[:, 2]]
    reported = (report.sequences, report.timesteps, report.padded)
    counted = (len(np.unique(real[:, 0])), int(lengths.sum()), sum(costs))
    if reported != counted:
        raise ConformanceError(
            f"plan: the report has {reported} sequences, timesteps and padded timesteps, but must "
            f"have {counted}"
        )
    worst = max(costs, default=0)
    if costs and (costs[report.worst], report.worst_rows * report.worst_length) != (worst, worst):
        raise ConformanceError(
            f"plan: the report's most expensive batch is {report.worst} with {report.worst_rows} "
            f"rows of {report.worst_length}, but must be one of {worst} timesteps after padding"
        )


def _totals(plan: Plan, number: int, batch: PlanBatch) -> tuple[int, int]:
    scored = scored_spans(plan, number, batch)
    real = int((row_lengths(batch.spans, batch.rows) > 0).sum())
    return int((scored[:, 2] - scored[:, 1]).sum()), real


def _spread(count: int, most: int = 64) -> list[int]:
    """Return at most ``most`` numbers below ``count``, not in order, to test random access."""
    numbers = sorted({int(place) for place in np.linspace(0, count - 1, most)}) if count else []
    return numbers[::2] + numbers[1::2][::-1]
