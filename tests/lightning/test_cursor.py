"""The cursor against counters as Lightning moves them, without a Trainer."""

from dataclasses import replace

import pytest

from seqdata.lightning.adapter import Counters
from seqdata.lightning.cursor import Cursor
from seqdata.resume_state import RunPosition

FRESH = Counters(ready=0, processed=0, total=0, is_last=False, steps=5)


def after(steps: int, *, of: int = 5, total: int | None = None) -> Counters:
    """Counters once ``steps`` steps of an epoch are trained."""
    return Counters(steps, steps, steps if total is None else total, steps >= of, of)


def test_nothing_begun_is_the_loaded_place():
    assert Cursor(RunPosition(3, 8)).get_run_position(after(2)) == RunPosition(3, 8)


@pytest.mark.parametrize("stride", [1, 2])
def test_each_trained_step_moves_by_the_stride(stride):
    cursor = Cursor().begin_iteration(FRESH, batches=10, stride=stride)
    assert [cursor.get_run_position(after(k)).position for k in range(4)] == [
        k * stride for k in range(4)
    ]


def test_a_batch_that_was_fetched_but_not_trained_does_not_count():
    cursor = Cursor().begin_iteration(FRESH, batches=5, stride=1)
    assert cursor.get_run_position(
        Counters(ready=3, processed=2, total=2, is_last=False, steps=5)
    ) == RunPosition(0, 2)


def test_a_failure_in_the_last_batch_does_not_end_the_epoch():
    cursor = Cursor().begin_iteration(FRESH, batches=5, stride=1)
    assert cursor.get_run_position(
        Counters(ready=5, processed=4, total=4, is_last=True, steps=5)
    ) == RunPosition(0, 4)


def test_the_last_batch_rolls_over_to_the_next_epoch():
    cursor = Cursor(RunPosition(1, 0)).begin_iteration(replace(FRESH, total=5), batches=5, stride=1)
    assert cursor.get_run_position(after(5, total=10)) == RunPosition(2, 0)


def test_the_end_is_lightnings_and_not_the_plans():
    limited = Counters(ready=3, processed=3, total=3, is_last=False, steps=3)
    assert Cursor().begin_iteration(replace(FRESH, steps=3), batches=5, stride=1).get_run_position(
        limited
    ) == RunPosition(1, 0)


def test_a_last_batch_by_lightnings_word_ends_the_epoch_early():
    skipped = Counters(ready=2, processed=2, total=2, is_last=True, steps=5)
    assert Cursor().begin_iteration(FRESH, batches=5, stride=1).get_run_position(
        skipped
    ) == RunPosition(1, 0)


def test_the_position_never_passes_the_plan():
    cursor = Cursor(RunPosition(0, 3)).begin_iteration(FRESH, batches=8, stride=2)
    assert cursor.get_run_position(after(3, of=9)).position == 8


def test_beginning_again_without_training_is_the_same_place():
    once = Cursor(RunPosition(0, 2)).begin_iteration(FRESH, batches=5, stride=1)
    assert once.begin_iteration(FRESH, batches=5, stride=1).start == RunPosition(0, 2)


def test_beginning_again_after_the_end_is_the_next_epoch():
    once = Cursor().begin_iteration(FRESH, batches=5, stride=1)
    assert once.begin_iteration(after(5), batches=5, stride=1).start == RunPosition(1, 0)


def test_an_epoch_that_is_left_in_the_middle_is_abandoned():
    once = Cursor().begin_iteration(FRESH, batches=5, stride=1)
    again = once.begin_iteration(
        Counters(ready=2, processed=2, total=2, is_last=False, steps=5), batches=5, stride=1
    )
    assert again.start == RunPosition(1, 0)


def test_an_epoch_that_the_trainer_has_opened_begins_at_its_start():
    cursor = Cursor().begin_iteration(FRESH, batches=5, stride=1)
    opened = Counters(ready=0, processed=0, total=5, is_last=False, steps=5)
    assert cursor.get_run_position(opened) == RunPosition(1, 0)


def test_totals_that_were_loaded_do_not_move_the_place():
    cursor = Cursor(RunPosition(2, 3)).begin_iteration(
        replace(FRESH, ready=3, total=13), batches=5, stride=1
    )
    assert cursor.get_run_position(
        Counters(ready=4, processed=4, total=14, is_last=False, steps=5)
    ) == RunPosition(2, 4)
