"""The sequences that explain a step's loss, from the records of a run.

With a score for each row, a sequence explains what its score is above the expected one: what is
usual around the step, moved half way to the sequence's own history. With one loss for each batch,
it explains what *all* its batches have in common: how far they were above what was usual at their
time, as the mean of the lower half, and less if they are few. A sequence that was in one high batch
by chance was in others, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.runs.loss_files import LossBlock, LossFiles
from seqdata.runs.step_losses import OUTLYING, StepLosses, Usual, summarize

_OWN_HISTORY = 0.5  # how far a long history moves what is expected
_PART_BITS = 16  # of a key: 65,535 parts

_ChooseRows = Callable[[LossBlock, NDArray[np.int64]], NDArray[np.bool_]]
"""Returns which rows of a block are wanted, bool (n,), from the block and the rows' keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A sequence of a step, and how much of the step's loss it explains.

    Attributes:
        id: Number in its store.
        part: Name of its part; None without parts.
        score: Its mean score in the step; of its batch, where that has one for all.
        mean_before: Mean of its scores in earlier steps; None if there were none.
        draws: How often it was drawn in the recorded run.
        share: Part of the step's sum of scores; None if scores are of batches, or negative.
        excess: What it explains; suspects are ordered by it.
        epoch: Epoch of its batch.
        batch: Number of its batch in the plan.
        rank: The rank that trained it.
    """

    id: int
    part: str | None
    score: float
    mean_before: float | None
    draws: int
    share: float | None
    excess: float
    epoch: int
    batch: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Facts of a step.

    Attributes:
        step: The optimizer's step, from 0.
        loss: Mean score of its sequences, or of its batches.
        usual: What that mean usually is around it.
        distance: By how many standard deviations it is above that.
        batches: Number of its batches, over ranks and accumulation.
        sequences: Number of its different sequences.
        is_shared: Whether scores are of whole batches.
        level: Median score in the step.
        level_distance: By how many standard deviations the median is above the usual one.
        tied: Number of first suspects that scores of batches cannot tell apart, since they were
            always in the same ones.
        is_explained: Whether the first suspect stands out: from the others of the step, or, with
            scores of whole batches, since all its batches were high.
        suspects: Its sequences: that explain most first.
    """

    step: int
    loss: float
    usual: float
    distance: float
    batches: int
    sequences: int
    is_shared: bool
    level: float
    level_distance: float
    tied: int
    is_explained: bool
    suspects: list[Suspect] = field(default_factory=list)

    @property
    def stands_out(self) -> bool:
        """Whether the step's loss is a spike."""
        return self.distance >= OUTLYING


class _Rows(NamedTuple):
    """Rows of some batches: flat arrays of equal length."""

    keys: NDArray[np.int64]  # a number for each pair of part and id
    steps: NDArray[np.int64]
    scores: NDArray[np.float64]
    epochs: NDArray[np.int64]
    numbers: NDArray[np.int64]
    ranks: NDArray[np.int64]
    is_shared: NDArray[np.bool_]

    def select(self, chosen: NDArray[np.bool_]) -> _Rows:
        columns: Any = [column[chosen] for column in self]
        return _Rows(*columns)


def explain_steps(
    losses: LossFiles, table: StepLosses, steps: Sequence[int], top: int
) -> list[StepReport]:
    """Return the reports of steps, in their order; the files are read twice.

    Args:
        losses: The files of a run.
        table: The losses of its steps.
        steps: The optimizer's steps.
        top: Most suspects of each.

    Raises:
        ConfigError: If nothing was recorded, or not the step; it names the nearest that was.
    """
    if not len(table):
        raise ConfigError(
            must_be(
                "why: the record",
                "of at least one step",
                "empty",
                "LossRecord writes every `every` batches, with each checkpoint and when training "
                "ends",
            )
        )
    for step in steps:
        if table.find(step) is None:
            raise _make_missing_error(table, step)
    step_numbers = np.array(sorted(set(steps)), dtype=np.int64)
    of_steps = _read_rows(
        losses, lambda block, _: np.isin(block.steps, step_numbers)[block.batch_of_row]
    )
    suspected = np.unique(of_steps.keys)
    history = _read_rows(losses, lambda _, keys: np.isin(keys, suspected))
    return [_explain_step(losses, table, step, of_steps, history, top) for step in steps]


def _explain_step(
    losses: LossFiles, table: StepLosses, step: int, of_steps: _Rows, history: _Rows, top: int
) -> StepReport:
    i = table.find(step) or 0
    own = of_steps.select(of_steps.steps == step)
    usual, usual_level = table.find_usual(i), table.find_usual_level(i)
    levels = _LevelCache(table)
    total = float(own.scores.sum())
    has_shares = not own.is_shared.any() and bool((own.scores >= 0).all()) and total > 0
    suspects = []
    for key in np.unique(own.keys).tolist():
        rows = own.select(own.keys == key)
        draws = history.select(history.keys == key)
        earlier = draws.scores[(draws.steps < step) & np.isfinite(draws.scores)]
        worst = int(np.argmax(np.where(np.isnan(rows.scores), np.inf, rows.scores)))
        part, id_ = _split_key(key, losses.names)
        suspects.append(
            Suspect(
                id=id_, part=part, score=float(rows.scores.mean()),
                mean_before=float(earlier.mean()) if len(earlier) else None,
                draws=len(draws.keys),
                share=float(rows.scores.sum()) / total if has_shares else None,
                excess=_find_excess(rows, draws, step, usual_level, levels),
                epoch=int(rows.epochs[worst]), batch=int(rows.numbers[worst]),
                rank=int(rows.ranks[worst]),
            )
        )  # fmt: skip
    suspects.sort(key=lambda suspect: (-suspect.excess, -suspect.draws, suspect.id))
    is_shared = bool(own.is_shared.any())
    tied = sum(suspect.excess == suspects[0].excess for suspect in suspects) if is_shared else 1
    return StepReport(
        step=step, loss=float(table.values[i]), usual=usual.value,
        distance=usual.score(float(table.values[i])), batches=int(table.batches[i]),
        sequences=len(suspects), is_shared=is_shared,
        level=float(table.levels[i]), level_distance=usual_level.score(float(table.levels[i])),
        tied=tied, is_explained=tied == 1 and _is_explained(suspects[0], own, usual_level),
        suspects=suspects[:top],
    )  # fmt: skip


def _is_explained(first: Suspect, own: _Rows, usual_level: Usual) -> bool:
    """Return whether the first suspect of a step stands out."""
    if own.is_shared.any():
        return first.excess >= OUTLYING * usual_level.spread
    if not math.isfinite(first.score):
        return bool(np.isfinite(own.scores).any())
    return summarize(own.scores, first.score).score(first.score) >= OUTLYING


class _LevelCache:
    """Usual losses around steps, computed once for each."""

    def __init__(self, table: StepLosses) -> None:
        self._table = table
        self._usual: dict[int, Usual] = {}

    def find(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the usual score around each step, float64 (n,)."""
        for step in steps.tolist():
            if step not in self._usual:
                self._usual[step] = self._table.find_usual_level(self._table.find(step) or 0)
        return np.array([self._usual[step].value for step in steps.tolist()])


def _find_excess(rows: _Rows, draws: _Rows, step: int, usual: Usual, levels: _LevelCache) -> float:
    """Return how much of a step's loss a sequence explains."""
    if rows.is_shared.any():
        # what comes after a loss that is not finite is not about its sequences
        counted = draws.select((draws.steps <= step) | np.isfinite(draws.scores))
        distances = counted.scores - levels.find(counted.steps)
        lower = np.sort(np.where(np.isfinite(distances), distances, np.inf))
        lower = lower[: (len(lower) + 1) // 2]
        return float(lower.mean()) * len(distances) / (len(distances) + 1)
    if not np.isfinite(rows.scores).all():
        return math.inf
    earlier = draws.select((draws.steps < step) & np.isfinite(draws.scores))
    expected, count = usual.value, len(earlier.keys)
    if count:
        own = float((earlier.scores - levels.find(earlier.steps)).mean())
        expected += _OWN_HISTORY * count / (count + 1) * own
    return float((rows.scores - expected).sum())


def _read_rows(losses: LossFiles, choose: _ChooseRows) -> _Rows:
    """Return the chosen rows of all files."""
    found = [rows for block in losses.iterate_blocks() for rows in _iterate_rows(block, choose)]
    columns = zip(*found, strict=True) if found else [[np.zeros(0, np.int64)]] * 7
    joined: Any = [np.concatenate(column) for column in columns]
    return _Rows(*joined)


def _iterate_rows(block: LossBlock, choose: _ChooseRows) -> Iterator[_Rows]:
    """Yield the chosen rows of a block, if there are any."""
    keys = (block.ids << _PART_BITS) + block.parts + 1
    chosen = choose(block, keys)
    if chosen.any():
        batches = block.batch_of_row[chosen]
        yield _Rows(
            keys[chosen], block.steps[batches], block.scores[chosen], block.epochs[batches],
            block.numbers[batches], np.full(len(batches), block.rank), block.is_shared[batches],
        )  # fmt: skip


def _split_key(key: int, names: Sequence[str]) -> tuple[str | None, int]:
    code = (key & ((1 << _PART_BITS) - 1)) - 1
    return (None if code < 0 else names[code]), key >> _PART_BITS


def _make_missing_error(table: StepLosses, step: int) -> ConfigError:
    nearest = table.find_nearest(step)
    return ConfigError(
        must_be(
            "why: `step`",
            f"a recorded step ({len(table):,} of {table.steps[0]} to {table.steps[-1]})",
            f"{step}, which has no record",
            f"The nearest one that has is {nearest}",
        )
    )
