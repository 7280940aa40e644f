"""Checks of the shares of ranks: equal steps, the same order on any number of ranks, exact resume.

The checks play whole epochs of small plans on every rank in one process. Expected values are
computed here from the definitions, not with ``seqdata.sharing``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqdata.plan import Plan
from seqdata.sharing import RankPlan, Step, Tail
from seqdata_testing import ConformanceError
from seqdata_testing.simulate import (
    SimulatedShare,
    TrainedBatch,
    count_step,
    is_batch,
    is_same_step,
    play,
    share_all_ranks,
    trained_batches,
    weighted_spans,
)


def check_shares(plan: Plan, size: int, *, first: int = 0, tail: Tail = "fill") -> None:
    """Check equal steps, the order of the plan, each row once, and totals (I1, I2, I3).

    Raises:
        ConformanceError: If a check fails.
    """
    check_equal_steps(plan, size, first=first, tail=tail)
    played = play(plan, size, first=first, tail=tail)
    check_order(played)
    check_exactly_once(played)
    check_totals(played)


def check_equal_steps(plan: Plan, size: int, *, first: int = 0, tail: Tail = "fill") -> None:
    """Check that all ranks have the number of steps that world size and ``tail`` require (I2).

    Args:
        plan: The plan of an epoch.
        size: World size.
        first: Number of batches of the plan that were trained before.
        tail: Treatment of ranks without a batch in the last step.

    Raises:
        ConformanceError: If a length, a first step or a position is wrong, or a step is missing.
    """
    steps = _steps(plan, len(plan), size, tail)
    remaining = _steps(plan, len(plan) - first, size, tail)
    stride = 1 if plan.lanes else size
    for rank, mine in enumerate(share_all_ranks(plan, size, first, tail)):
        where = f"share: rank {rank} of {size} from batch {first}"
        if len(mine) != steps:
            raise ConformanceError(f"{where} has {len(mine)} steps, but must have {steps}")
        if mine.first_step != steps - remaining:
            raise ConformanceError(
                f"{where} begins at step {mine.first_step}, but must begin at {steps - remaining}: "
                "first_step + remaining is len"
            )
        for step in (steps - remaining, steps):
            due = min(len(plan), first + (step - steps + remaining) * stride)
            if mine.position(step) != due:
                raise ConformanceError(
                    f"{where}: the position before step {step} is {mine.position(step)}, but must "
                    f"be {due} batches"
                )
        for step in (steps - remaining - 1, steps):
            if _has(mine, step):
                raise ConformanceError(
                    f"{where} returns a step {step}, which does not exist, but must raise "
                    "IndexError"
                )


def check_order(played: SimulatedShare) -> None:
    """Check that the concatenated steps of all ranks are the plan (I3).

    Raises:
        ConformanceError: If a batch comes out of order, changed, with a wrong weight or lane.
    """
    plan, size, first, tail = played[:4]
    due = list(range(first, len(plan)))
    if not plan.lanes and tail == "drop":
        due = due[: len(due) // size * size]
    if not plan.lanes and tail == "repeat":
        due += [number % len(plan) for number in range(len(plan), len(plan) + -len(due) % size)]
    trained = [part for steps in played.steps for part in trained_batches(plan, steps)]
    numbers = [part.number for part in trained]
    if numbers != due:
        place = next(
            (k for k, pair in enumerate(zip(numbers, due, strict=False)) if pair[0] != pair[1]),
            min(len(numbers), len(due)),
        )
        raise ConformanceError(
            f"share: the ranks' steps from batch {first} on {size} ranks are batches "
            f"{numbers[place : place + 3]} at position {place}, but must be "
            f"{due[place : place + 3]}"
        )
    for part in trained:
        if not is_batch(plan.batch(part.number), part):
            raise ConformanceError(
                f"share: batch {part.number} on {size} ranks has other rows than in the plan, but "
                "must have the same rows"
            )
    if not plan.lanes:
        _check_dummy_rows(plan, played.steps)


def check_exactly_once(played: SimulatedShare) -> None:
    """Check that each row of weight > 0 comes once over all ranks, as ``tail`` requires (I1).

    Raises:
        ConformanceError: If a row is lost or repeated.
    """
    plan, size, first, tail = played[:4]
    trained = [weighted_spans(step) for steps in played.steps for step in steps]
    uneven = (len(plan) - first) % size
    due = [plan.batch(number).spans for number in range(first, len(plan))]
    if not plan.lanes and uneven and tail == "drop":
        due = due[:-uneven]
    if not plan.lanes and uneven and tail == "repeat":
        more = range(len(plan), len(plan) + size - uneven)
        due += [plan.batch(number % len(plan)).spans for number in more]
    found, expected = _multiset(trained), _multiset(due)
    if not np.array_equal(found, expected):
        raise ConformanceError(
            f"share: {len(found)} spans of weight > 0 on {size} ranks from batch {first}, but must "
            f"be the plan's {len(expected)}, each once"
        )


def check_totals(played: SimulatedShare) -> None:
    """Check that the first and last rank know the totals of scored timesteps and rows.

    Raises:
        ConformanceError: If a total is not the sum over the ranks.
    """
    sums = [(0, 0)]
    for steps in played.steps:
        scored, rows = sums[-1]
        for step in steps:
            more = count_step(step, played.plan)
            scored, rows = scored + more[0], rows + more[1]
        sums.append((scored, rows))
    last = len(sums) - 1
    pairs = {(k, k + 1) for k in range(last)} | {(0, last), (last // 3, last - last // 3)}
    for mine in (played.ranks[0], played.ranks[-1]):
        for low, high in sorted(pairs):
            totals = mine.totals(mine.first_step + low, mine.first_step + high)
            due = (sums[high][0] - sums[low][0], sums[high][1] - sums[low][1])
            if totals != due:
                raise ConformanceError(
                    f"share: totals from step {mine.first_step + low} to {mine.first_step + high} "
                    f"on {played.size} ranks are {totals}, but must be {due}: no padding row, no "
                    "context counts"
                )


def check_resume(plan: Plan, size: int, cuts: Sequence[int], *, tail: Tail = "fill") -> None:
    """Check that an epoch that is interrupted and resumed repeatedly continues exactly (I4).

    Args:
        plan: The plan of an epoch.
        size: World size.
        cuts: Increasing steps at which it is interrupted; the state is converted to JSON and back.
        tail: Treatment of ranks without a batch in the last step.

    Raises:
        ConformanceError: If a step after a resume differs from the uninterrupted epoch's.
    """
    uninterrupted = share_all_ranks(plan, size, 0, tail)
    ranks = uninterrupted
    for cut in cuts:
        position = _agreed_position(ranks, cut)
        ranks = share_all_ranks(plan, size, position, tail)
        for rank, (mine, uncut) in enumerate(zip(ranks, uninterrupted, strict=True)):
            where = f"share: rank {rank} of {size}, resumed at step {cut}"
            if (mine.first_step, len(mine)) != (cut, len(uncut)):
                raise ConformanceError(
                    f"{where}, goes from step {mine.first_step} to {len(mine)}, but must go from "
                    f"{cut} to {len(uncut)}"
                )
            for step in range(cut, len(mine)):
                if not is_same_step(mine[step], uncut[step]):
                    raise ConformanceError(
                        f"{where}: step {step} is batch {mine[step].number}, but must be batch "
                        f"{uncut[step].number} just as without a stop"
                    )


def check_elastic(plan: Plan, legs: Sequence[tuple[int, int]]) -> None:
    """Check that no batch is lost or repeated if the number of ranks changes in mid-epoch (I5).

    Args:
        plan: The plan of an epoch.
        legs: (number of ranks, number of steps) of each part; the last one plays to the end, with
            the tail ``fill``.

    Raises:
        ConformanceError: If batches are lost, repeated or out of order, or a count is wrong.
    """
    position = 0
    trained: list[TrainedBatch] = []
    for leg, (size, steps) in enumerate(legs):
        check_equal_steps(plan, size, first=position)
        ranks = share_all_ranks(plan, size, position, "fill")
        last = len(ranks[0])
        stop = last if leg == len(legs) - 1 else min(last, ranks[0].first_step + steps)
        for step in range(ranks[0].first_step, stop):
            trained += trained_batches(plan, [mine[step] for mine in ranks])
        position = _agreed_position(ranks, stop)
    worlds = [size for size, _ in legs]
    numbers = [part.number for part in trained]
    if numbers != list(range(len(plan))):
        odd = sorted(set(range(len(plan))) ^ set(numbers)) or numbers
        raise ConformanceError(
            f"share: worlds of {worlds} ranks train {len(numbers)} batches, but must train each of "
            f"{len(plan)} once and in order; look at batches {odd[:5]}"
        )
    for part in trained:
        if not is_batch(plan.batch(part.number), part):
            raise ConformanceError(
                f"share: batch {part.number} changes with the world, but must be the same on "
                f"{worlds}"
            )


def _steps(plan: Plan, batches: int, size: int, tail: Tail) -> int:
    if plan.lanes:
        return batches
    return batches // size if tail == "drop" else (batches + size - 1) // size


def _has(mine: RankPlan, step: int) -> bool:
    try:
        mine[step]
    except IndexError:
        return False
    return True


def _agreed_position(ranks: Sequence[RankPlan], step: int) -> int:
    states = {json.dumps({"position": mine.position(step)}) for mine in ranks}
    if len(states) > 1:
        raise ConformanceError(
            f"share: at step {step} the ranks must save the same state, but save {sorted(states)}"
        )
    return int(json.loads(states.pop())["position"])


def _check_dummy_rows(plan: Plan, played: Sequence[Sequence[Step]]) -> None:
    for steps in played:
        dummy_seen = False
        for rank, step in enumerate(steps):
            if step.weights.any():
                declared = plan.row_weights([step.number])
                due = np.ones(len(step.weights)) if declared is None else declared
                if dummy_seen or not np.array_equal(step.weights, due) or step.lanes is not None:
                    weights = "all 1" if declared is None else str(declared.tolist())
                    raise ConformanceError(
                        f"share: batch {step.number} on rank {rank} has weights "
                        f"{step.weights.tolist()}, but must be {weights}, before any padding rows, "
                        "without lanes"
                    )
                continue
            dummy_seen = True
            head = plan.batch(steps[0].number)
            stop = 1 if head.rows is None else int(head.rows[1])
            is_same = np.array_equal(step.spans, head.spans[:stop])
            if not (is_same and step.number == steps[0].number and len(step.weights) == 1):
                raise ConformanceError(
                    f"share: the padding row of rank {rank} is {step.spans.tolist()} of batch "
                    f"{step.number}, but must be row 0 of batch {steps[0].number}, with one "
                    "weight 0"
                )


def _multiset(spans: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    table = np.concatenate([np.empty((0, 3), dtype=np.int64), *spans])
    table = table[table[:, 1] < table[:, 2]]  # idle lanes are nothing
    return table[np.lexsort(table.T)]
