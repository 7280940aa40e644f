"""Slots and lines of status lie apart in shared memory."""

from seqdata.loading.workers import messages as slots
from seqdata.loading.workers.messages import MAX_REQUESTS, SLOT_HEADER, SharedSlots


def test_slots_and_lines_of_status_do_not_touch_each_other():
    arena = SharedSlots.allocate(3, 4, 1 << 13)
    for number in range(4):
        arena.view_slot(number)[:] = bytes([number + 1]) * (1 << 13)
    arena.view_status()[:] = 99
    for number in range(4):
        assert bytes(arena.view_slot(number)) == bytes([number + 1]) * (1 << 13)
        table, done = (
            slots.view_answer_table(arena.view_slot(number)),
            slots.view_num_done(arena.view_slot(number)),
        )
        assert table.shape == (MAX_REQUESTS, 3)
        assert 8 * (table.size + done.size) <= SLOT_HEADER
    assert (arena.view_status() == 99).all()
