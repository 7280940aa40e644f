"""The cursor against counters as Lightning moves them, without a Trainer."""

from dataclasses import replace

import pytest

from seqdata.lightning.adapter import Counters
from seqdata.lightning.cursor import Cursor
from seqdata.runs.run_state import Place

FRESH = Counters(ready=0, processed=0, total=0, last=False, steps=5)


def after(steps: int, *, of: int = 5, total: int | None = None) -> Counters:
    """Counters once ``steps`` steps of an epoch are trained."""
    return Counters(steps, steps, steps if total is None else total, steps >= of, of)


def test_nothing_begun_is_the_loaded_place():
    assert Cursor(Place(3, 8)).here(after(2)) == Place(3, 8)


@pytest.mark.parametrize("stride", [1, 2])
def test_each_trained_step_moves_by_the_stride(stride):
    cursor = Cursor().begun(FRESH, batches=10, stride=stride)
    assert [cursor.here(after(k)).position for k in range(4)] == [k * stride for k in range(4)]


def test_a_batch_that_was_fetched_but_not_trained_does_not_count():
    cursor = Cursor().begun(FRESH, batches=5, stride=1)
    assert cursor.here(Counters(ready=3, processed=2, total=2, last=False, steps=5)) == Place(0, 2)


def test_a_failure_in_the_last_batch_does_not_end_the_epoch():
    cursor = Cursor().begun(FRESH, batches=5, stride=1)
    assert cursor.here(Counters(ready=5, processed=4, total=4, last=True, steps=5)) == Place(0, 4)


def test_the_last_batch_rolls_over_to_the_next_epoch():
    cursor = Cursor(Place(1, 0)).begun(replace(FRESH, total=5), batches=5, stride=1)
    assert cursor.here(after(5, total=10)) == Place(2, 0)


def test_the_end_is_lightnings_and_not_the_plans():
    limited = Counters(ready=3, processed=3, total=3, last=False, steps=3)
    assert Cursor().begun(replace(FRESH, steps=3), batches=5, stride=1).here(limited) == Place(1, 0)


def test_a_last_batch_by_lightnings_word_ends_the_epoch_early():
    skipped = Counters(ready=2, processed=2, total=2, last=True, steps=5)
    assert Cursor().begun(FRESH, batches=5, stride=1).here(skipped) == Place(1, 0)


def test_the_position_never_passes_the_plan():
    cursor = Cursor(Place(0, 3)).begun(FRESH, batches=8, stride=2)
    assert cursor.here(after(3, of=9)).position == 8


def test_beginning_again_without_training_is_the_same_place():
    once = Cursor(Place(0, 2)).begun(FRESH, batches=5, stride=1)
    assert once.begun(FRESH, batches=5, stride=1).start == Place(0, 2)


def test_beginning_again_after_the_end_is_the_next_epoch():
    once = Cursor().begun(FRESH, batches=5, stride=1)
    assert once.begun(after(5), batches=5, stride=1).start == Place(1, 0)


def test_an_epoch_that_is_left_in_the_middle_is_abandoned():
    once = Cursor().begun(FRESH, batches=5, stride=1)
    again = once.begun(
        Counters(ready=2, processed=2, total=2, last=False, steps=5), batches=5, stride=1
    )
    assert again.start == Place(1, 0)


def test_an_epoch_that_the_trainer_has_opened_begins_at_its_start():
    cursor = Cursor().begun(FRESH, batches=5, stride=1)
    opened = Counters(ready=0, processed=0, total=5, last=False, steps=5)
    assert cursor.here(opened) == Place(1, 0)


def test_totals_that_were_loaded_do_not_move_the_place():
    cursor = Cursor(Place(2, 3)).begun(replace(FRESH, ready=3, total=13), batches=5, stride=1)
    assert cursor.here(Counters(ready=4, processed=4, total=14, last=False, steps=5)) == Place(2, 4)
