"""Repairs of a checkpoint's counters, as Lightning writes them at each of its hooks."""

import copy
import warnings

import pytest
import torch

from seqdata.errors import SeqDataWarning
from seqdata.lightning.adapter import LoopStates
from seqdata.lightning.cursor import (
    Pending,
    ResumePoint,
    reopen_epoch_end,
    reopen_validation,
    repair_counters,
)
from seqdata.resume_state import RunPosition
from tests.lightning.harness import Recorder, data_of, fit


def tracker(ready: int, started: int, processed: int, completed: int) -> dict[str, int]:
    return {"ready": ready, "started": started, "processed": processed, "completed": completed}


def states(*, epochs: tuple, current: tuple, total: tuple, last: bool = False) -> LoopStates:
    return LoopStates(
        epochs={"current": tracker(*epochs), "total": tracker(*epochs)},
        batches={
            "current": tracker(*current),
            "total": tracker(*total),
            "is_last_batch": last,
        },
        validation={
            "current": tracker(2, 2, 1, 1),
            "total": tracker(5, 5, 4, 4),
            "is_last_batch": False,
        },
    )


@pytest.mark.parametrize(
    ("epochs", "processed"),
    [
        ((2, 2, 2, 1), 1),  # its end failed: it is repeated
        ((2, 2, 2, 2), 2),  # it has ended
        ((2, 2, 1, 1), 1),  # its end has not begun
    ],
)
def test_the_end_of_an_epoch_is_repeated_only_if_it_began_and_did_not_end(epochs, processed):
    saved = states(epochs=epochs, current=(4, 4, 4, 4), total=(8, 8, 8, 8))
    reopen_epoch_end(saved)
    expected = tracker(*epochs[:2], processed, epochs[3])
    assert saved.epochs == {"current": expected, "total": expected}


@pytest.mark.parametrize(
    ("current", "moved"),
    [
        ((4, 4, 4, 3), (8, 8, 8, 8)),  # saved in on_train_batch_end
        ((4, 4, 4, 4), (8, 8, 8, 8)),  # saved after validation
        ((5, 5, 4, 4), (9, 9, 8, 8)),  # a training step failed
        ((5, 4, 4, 4), (9, 8, 8, 8)),  # a hook before it failed
    ],
)
def test_another_world_moves_all_counters_by_one_amount(current, moved):
    total = tuple(count + 6 for count in current)
    saved = states(epochs=(2, 2, 1, 1), current=current, total=total, last=True)
    repair_counters(saved, ResumePoint(RunPosition(1, 8), step=8, is_shifted=True, epoch_steps=12))
    assert saved.batches["current"] == tracker(*moved)
    assert saved.batches["total"]["ready"] == total[0]
    assert saved.batches["is_last_batch"] is False
    assert saved.epochs["current"] == tracker(2, 2, 1, 1)


def test_the_same_world_changes_no_counter_of_training():
    saved = states(epochs=(2, 2, 1, 1), current=(4, 4, 4, 4), total=(10, 10, 10, 10))
    before = copy.deepcopy((saved.epochs, saved.batches))
    repair_counters(saved, ResumePoint(RunPosition(1, 9), step=9, is_shifted=False, epoch_steps=12))
    assert (saved.epochs, saved.batches) == before


@pytest.mark.parametrize(
    "epochs",
    [
        (2, 2, 2, 1),  # saved in on_train_epoch_end
        (2, 2, 2, 2),  # saved after the fit
        (3, 2, 2, 2),  # saved while the next epoch was being prepared
    ],
)
def test_an_epoch_that_has_ended_is_finished(epochs):
    saved = states(epochs=epochs, current=(6, 6, 6, 6), total=(12, 12, 12, 12), last=True)
    point = ResumePoint(RunPosition(2, 0), step=0, is_shifted=True, epoch_steps=12)
    is_ending = epochs == (2, 2, 2, 1)
    pending = repair_counters(saved, point)
    assert pending is (Pending.EPOCH_SCHEDULERS if is_ending else Pending.NOTHING)
    assert saved.epochs == {"current": tracker(2, 2, 2, 2), "total": tracker(2, 2, 2, 2)}
    assert saved.batches["current"] == tracker(0, 0, 0, 0)
    assert saved.batches["total"] == tracker(12, 12, 12, 12)
    assert saved.batches["is_last_batch"] is False


def test_an_epoch_whose_first_batch_failed_stays_open():
    saved = states(epochs=(3, 3, 2, 2), current=(1, 1, 0, 0), total=(13, 13, 12, 12))
    before = copy.deepcopy((saved.epochs, saved.batches))
    repair_counters(saved, ResumePoint(RunPosition(2, 0), step=0, is_shifted=True, epoch_steps=12))
    assert (saved.epochs, saved.batches) == before


def test_an_epoch_that_an_unrepaired_run_took_for_completed_is_opened_again():
    saved = states(epochs=(1, 1, 1, 1), current=(2, 2, 2, 1), total=(8, 8, 8, 7))
    repair_counters(saved, ResumePoint(RunPosition(1, 2), step=2, is_shifted=False, epoch_steps=12))
    assert saved.epochs["current"] == tracker(2, 2, 1, 1)
    assert saved.epochs["total"] == tracker(2, 2, 1, 1)


@pytest.mark.parametrize(
    "epochs",
    [
        (2, 2, 2, 1),  # saved in on_train_epoch_end
        (2, 2, 2, 2),  # saved after the fit
    ],
)
def test_an_epoch_that_a_limit_closed_in_the_middle_is_open_again(epochs):
    saved = states(epochs=epochs, current=(2, 2, 2, 2), total=(8, 8, 8, 8))
    repair_counters(saved, ResumePoint(RunPosition(1, 2), step=2, is_shifted=False, epoch_steps=12))
    assert saved.epochs == {"current": tracker(2, 2, 1, 1), "total": tracker(2, 2, 1, 1)}
    assert saved.batches["current"] == tracker(2, 2, 2, 2)


@pytest.mark.parametrize(
    "total",
    [
        (11, 11, 10, 9),  # an earlier resume went on from a step that failed
        (11, 10, 10, 9),  # from a hook before it
        (10, 9, 10, 9),  # on_train_batch_start ended an epoch before
    ],
)
def test_totals_that_lightning_leaves_behind_are_those_of_the_epoch_again(total):
    saved = states(epochs=(2, 2, 1, 1), current=(4, 4, 4, 3), total=total)
    repair_counters(saved, ResumePoint(RunPosition(1, 4), step=4, is_shifted=False, epoch_steps=12))
    assert saved.batches["total"] == tracker(10, 10, 10, 10)


@pytest.mark.parametrize("is_moved", [False, True])
def test_an_epoch_saved_in_its_last_batch_ends_first_unless_other_data_begins(is_moved):
    saved = states(epochs=(2, 2, 1, 1), current=(6, 6, 6, 5), total=(12, 12, 12, 11), last=True)
    point = ResumePoint(RunPosition(2, 0), 0, True, epoch_steps=4, is_moved=is_moved)
    pending = repair_counters(saved, point)
    assert pending is (Pending.NOTHING if is_moved else Pending.STEP_END)
    assert saved.epochs["current"] == (tracker(2, 2, 2, 2) if is_moved else tracker(2, 2, 1, 1))
    assert saved.batches["current"] == (tracker(0, 0, 0, 0) if is_moved else tracker(4, 4, 4, 4))
    assert saved.batches["total"] == tracker(12, 12, 12, 12)


def test_a_validation_that_was_cut_off_begins_again():
    saved = states(epochs=(1, 1, 0, 0), current=(2, 2, 2, 2), total=(2, 2, 2, 2))
    point = ResumePoint(RunPosition(0, 2), step=2, is_shifted=False, epoch_steps=12)
    assert repair_counters(saved, point) is Pending.VALIDATION
    assert saved.validation["current"] == tracker(0, 0, 0, 0)
    assert saved.validation["total"] == tracker(4, 4, 4, 4)


def test_an_epoch_that_lacks_only_its_validation_is_not_finished():
    saved = states(epochs=(2, 2, 1, 1), current=(6, 6, 6, 6), total=(12, 12, 12, 12), last=True)
    repair_counters(saved, ResumePoint(RunPosition(2, 0), step=0, is_shifted=True, epoch_steps=4))
    assert saved.epochs["current"] == tracker(2, 2, 1, 1)
    assert saved.batches["current"] == tracker(4, 4, 4, 4)
    assert saved.batches["is_last_batch"]


@pytest.mark.parametrize(
    ("is_validated", "pending"),
    [
        (True, Pending.SCHEDULERS),
        (False, Pending.NOTHING),  # the next batch could not be fetched
        (None, Pending.SCHEDULERS),  # saved by an earlier release
    ],
)
def test_a_validation_that_is_done_is_not_repeated(is_validated, pending):
    saved = states(epochs=(2, 2, 1, 1), current=(4, 4, 4, 4), total=(10, 10, 10, 10))
    saved.validation.update(total=tracker(3, 3, 3, 3), is_last_batch=True)
    point = ResumePoint(RunPosition(1, 4), step=4, is_shifted=False, epoch_steps=6)
    assert repair_counters(saved, point, is_validated=is_validated) is pending
    assert saved.batches["current"] == tracker(4, 4, 4, 4)


def test_a_validation_that_is_cut_off_counts_as_begun():
    saved = states(epochs=(2, 2, 1, 1), current=(6, 6, 6, 6), total=(12, 12, 12, 12), last=True)
    saved.validation["total"] = tracker(4, 4, 4, 4)
    reopen_validation(saved)
    assert saved.validation["total"] == tracker(5, 5, 4, 4)


class Scheduled(Recorder):
    """Its learning rate halves after each update; the scheduler's step may fail."""

    def __init__(self, fail_after=None):
        super().__init__()
        self.fail_after = fail_after
        self.rates = []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        halving = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return [optimizer], [{"scheduler": halving, "interval": "step"}]

    def lr_scheduler_step(self, scheduler, metric):
        if self.trainer.global_step == self.fail_after:
            raise OSError("no disk is left for the rate")
        super().lr_scheduler_step(scheduler, metric)

    def on_train_batch_start(self, batch, batch_idx):
        self.rates.append(self.optimizers().param_groups[0]["lr"])


def test_a_failed_step_of_a_scheduler_is_told_where_its_checkpoint_is_gone_on_with(tmp_path):
    options = {"max_steps": 5, "every": 1000}
    failed = fit(data_of(), model=Scheduled(3), folder=tmp_path, **options)
    assert isinstance(failed.error, OSError)
    (path,) = tmp_path.glob("*.ckpt")
    rest = Scheduled()
    with pytest.warns(SeqDataWarning, match=r"`lr_scheduler_step` failed after the last update"):
        fit(data_of(), model=rest, ckpt=path, folder=tmp_path / "rest", every=4, max_steps=5)
    assert rest.rates == [0.1 / 2**2, 0.1 / 2**3]  # a step behind, as the warning says
    (later,) = (tmp_path / "rest").glob("step=4.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SeqDataWarning)  # it is told once
        fit(data_of(), model=Scheduled(), ckpt=later, max_steps=5)
