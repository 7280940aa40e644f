"""Sequences that explain a step's loss, from the records of a run.

With a score for each row, a sequence explains the excess of its score over the expected one: the
usual score around the step, moved half way to the sequence's own history. With one loss for each
batch, it explains what *all* its batches have in common: the mean of the lower half of their
distances from the usual loss, reduced if there are few. A sequence that was in one high batch by
chance was also in others.
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

_OWN_HISTORY = 0.5  # weight of a long history in the expected score
_PART_BITS = 16  # bits of a key for the part: 65,535 parts

_ChooseRows = Callable[[LossBlock, NDArray[np.int64]], NDArray[np.bool_]]
"""Function of a block and the keys of its rows that returns which rows to read, bool (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A sequence of a step, and how much of the step's loss it explains.

    Attributes:
        id: Index in its store.
        part: Name of its part; None without parts.
        score: Mean score in the step; that of the batch if the batch has one score.
        mean_before: Mean score in earlier steps; None if there were none.
        draws: Number of draws in the recorded run.
        share: Fraction of the step's sum of scores; None if scores are of batches, or negative.
        excess: Loss that it explains; suspects are ordered by it.
        epoch: Epoch of its batch.
        batch: Index of its batch in the plan.
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
    """Report about a step.

    Attributes:
        step: The optimizer's step, from 0.
        loss: Mean score of its sequences, or of its batches.
        usual: Usual mean score around the step.
        distance: Distance of the loss above the usual one, in standard deviations.
        batches: Number of its batches, over ranks and accumulation.
        sequences: Number of distinct sequences.
        is_shared: Whether scores are of whole batches.
        level: Median score in the step.
        level_distance: Distance of the median above the usual one, in standard deviations.
        tied: Number of first suspects that were always in the same batches, so that scores of
            batches do not distinguish them.
        is_explained: Whether the first suspect stands out from the others of the step; with scores
            of whole batches, whether all its batches were high.
        suspects: Sequences of the step, ordered by how much they explain.
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

    keys: NDArray[np.int64]  # part and id in one integer
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
        top: Most suspects of each step.

    Raises:
        ConfigError: If nothing was recorded, or a step has no record; it names the nearest step.
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
    """Cache of the usual losses around steps."""

    def __init__(self, table: StepLosses) -> None:
        self._table = table
        self._usual: dict[int, Usual] = {}

    def find(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the usual score of a sequence or batch around each step, float64 (n,)."""
        for step in steps.tolist():
            if step not in self._usual:
                self._usual[step] = self._table.find_usual_level(self._table.find(step) or 0)
        return np.array([self._usual[step].value for step in steps.tolist()])


def _find_excess(rows: _Rows, draws: _Rows, step: int, usual: Usual, levels: _LevelCache) -> float:
    """Return the loss of a step that a sequence explains."""
    if rows.is_shared.any():
        # after a loss that is not finite, losses do not depend on the sequences
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
    """Yield the chosen rows of a block, unless there are none."""
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
            f"The nearest recorded step is {nearest}",
        )
    )
