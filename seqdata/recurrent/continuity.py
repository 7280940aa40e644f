"""The progress of each lane, and the check that a batch continues from it.

Without the check a skipped or repeated chunk, or the state of another sequence, would go unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import offsets_from_lengths
from seqdata.errors import PlanError, ResumeError

_UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class LaneProgress:
    """The progress of a table's lanes.

    Attributes:
        epoch: Epoch of the last batch that was put back.
        number: Index of that batch.
        lanes: The lanes, by row.
        ids: int64 (r,), the sequence in which each lane continues; -1 if it has read nothing.
        offsets: int64 (r,), the timestep at which it continues.
    """

    epoch: int
    number: int
    lanes: tuple[int, ...]
    ids: Tensor
    offsets: Tensor

    def lookup(self, lanes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return ids and offsets of lanes, -1 for unknown ones."""
        if lanes == self.lanes:
            return self.ids, self.offsets
        row_by_lane = {lane: row for row, lane in enumerate(self.lanes)}
        found = [row_by_lane.get(lane, _UNKNOWN) for lane in lanes]
        rows = torch.tensor(found, dtype=torch.int64, device="cpu")
        known = rows >= 0
        if not len(self.lanes):
            return torch.full_like(rows, _UNKNOWN), torch.full_like(rows, _UNKNOWN)
        known_rows = rows.clamp(min=0)
        ids = torch.where(known, self.ids[known_rows], _UNKNOWN)
        return ids, torch.where(known, self.offsets[known_rows], _UNKNOWN)


def check_continues(
    progress: LaneProgress | None, batch: SequenceBatch, lanes: tuple[int, ...], table: str
) -> None:
    """Raise if a batch does not continue where the lanes stopped.

    Args:
        progress: Progress of the table; None if there is none.
        batch: The next batch, after batch 0.
        lanes: The lanes of its rows.
        table: Name of the table.

    Raises:
        ResumeError: If there is no progress.
        PlanError: If a batch was missed or is repeated, or its rows do not continue the lanes.
    """
    if progress is None:
        raise ResumeError.at(
            f"lanes: table {table!r} has no state, but batch {batch.number} of epoch "
            f"{batch.epoch} continues from one. Load the states that were saved with the "
            "loader's state, or restart the epoch at batch 0. A Trainer saves those of a "
            "LaneStates that is an attribute of a module, or in a list, tuple or dict that is one.",
            epoch=batch.epoch, batch=batch.number,
        )  # fmt: skip
    follows = (progress.epoch, progress.number + 1) == (batch.epoch, batch.number)
    ids, offsets = progress.lookup(lanes)
    is_mismatched = (batch.lengths > 0) & (batch.start > 0) & ~batch.on_cpu("reset")
    is_mismatched &= (batch.ids != ids) | (batch.start != offsets)
    if not follows or bool(is_mismatched.any()):
        raise _make_error(progress, batch, (lanes, ids, offsets, is_mismatched), table)


def advance(
    batch: SequenceBatch, lanes: tuple[int, ...], before: LaneProgress | None
) -> LaneProgress:
    """Return the progress of the lanes after a batch is put back.

    Args:
        batch: The batch.
        lanes: The lanes of its rows.
        before: Progress before the batch; None if there was none.
    """
    ids, offsets = state_positions(batch)
    idle = batch.lengths == 0
    if bool(idle.any()):
        previous = torch.full_like(ids, _UNKNOWN), torch.full_like(ids, _UNKNOWN)
        if before is not None:
            previous = before.lookup(lanes)
        ids, offsets = torch.where(idle, previous[0], ids), torch.where(idle, previous[1], offsets)
    return LaneProgress(batch.epoch, batch.number, lanes, ids, offsets)


def state_positions(batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    """Return the position of each row's state: sequence and timestep, int64 (r,) each.

    This is the end of the row, or ``overlap`` timesteps before it that the next chunk reads again.
    """
    steps_before = (batch.lengths - batch.overlap).clamp(min=0)  # timesteps of the row up to there
    spans = batch.segments
    if spans is None or not len(spans):
        return batch.ids, batch.start + steps_before
    rows = torch.arange(len(batch), device=spans.device)
    offsets = offsets_from_lengths(spans[:, 3] - spans[:, 2])
    timesteps = offsets_from_lengths(batch.lengths)[:-1] + steps_before
    last = torch.searchsorted(spans[:, 0].contiguous(), rows, right=True) - 1
    within = torch.searchsorted(offsets[1:], timesteps, right=True)
    span_numbers = torch.minimum(last, within).clamp(min=0)
    return spans[span_numbers, 1], spans[span_numbers, 2] + timesteps - offsets[span_numbers]


def starts_within(batch: SequenceBatch) -> Tensor:
    """Return whether each row ends in a sequence that begins in it, bool (r,)."""
    spans = batch.segments
    if spans is None or not len(spans):
        return (batch.start == 0) & (batch.lengths > 0)
    rows = torch.arange(len(batch), device=spans.device)
    last = torch.searchsorted(spans[:, 0].contiguous(), rows, right=True) - 1
    return (spans[last.clamp(min=0), 2] == 0) & (batch.lengths > 0)


def _make_error(
    progress: LaneProgress,
    batch: SequenceBatch,
    rows: tuple[tuple[int, ...], Tensor, Tensor, Tensor],
    table: str,
) -> PlanError:
    lanes, ids, offsets, is_mismatched = rows
    positions = (
        (is_mismatched if bool(is_mismatched.any()) else batch.lengths > 0)
        .nonzero()
        .flatten()
        .tolist()
    )
    row = positions[0] if positions else 0
    lane, sequence, start = lanes[row], int(batch.ids[row]), int(batch.start[row])
    expected = "nothing before it"
    if int(ids[row]) != _UNKNOWN:
        expected = f"sequence {int(ids[row])} up to timestep {int(offsets[row])}"
    number = progress.number + 1
    if (batch.epoch, batch.number) == (progress.epoch, number):
        problem = "belongs to other lanes or data"
    elif batch.epoch != progress.epoch:
        problem = f"comes after batch {progress.number} of epoch {progress.epoch}"
    elif batch.number < number:
        problem = f"is repeated, or late, after batch {progress.number}"
    else:
        problem = (
            f"comes after batch {progress.number}: {batch.number - number} between were missed"
        )
    return PlanError.at(
        f"lanes: table {table!r}: batch {batch.number} of epoch {batch.epoch} {problem}; its "
        f"lane {lane} begins in sequence {sequence} at timestep {start}, and has seen "
        f"{expected}. It must continue where its lane stopped. Call `take` and `put` once for "
        "each batch of a loader, in order, and use a table for each loader",
        epoch=batch.epoch, batch=batch.number, lane=lane, sequence=sequence,
    )  # fmt: skip
