"""The Player's threads and memory: ahead of their use, and gone in the end."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from seqdata.errors import IncompleteEpochError
from seqdata.loading.engine import EpochEngine
from seqdata.loading.options import EngineOptions
from seqdata.loading.output import MIN_BUFFER_BYTES
from seqdata.policies.fixed import Fixed
from seqdata.storage.memory import MemoryStore
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.waiting import patient, until
from tests.samples import list_prefetch_threads, prefetch_threads_end

STORE = MemoryStore.from_sequences([[number] for number in range(103)])


def player(policy, store=STORE, **options):
    return EpochEngine(store, policy, EngineOptions(**options))


def test_an_iteration_that_is_left_ends_its_thread():
    for _ in player(Fixed(1)).iterate(0, 0):
        break
    assert prefetch_threads_end()


def test_shutdown_ends_what_runs_and_the_epoch_is_not_taken_for_whole():
    mine = player(Fixed(1))
    items = mine.iterate(0, 0)
    next(items)
    mine.shutdown()
    assert not list_prefetch_threads()
    with pytest.raises(
        IncompleteEpochError, match=r"only 1?\d of 103 batches of epoch 0 were delivered"
    ):
        list(items)
    assert len(list(mine.iterate(0, 0))) == 103


def test_large_outputs_come_from_recycled_memory_and_stay_whole():
    length = MIN_BUFFER_BYTES // 8
    store = MemoryStore.from_sequences(
        [np.full(length, number, dtype=np.float64) for number in range(12)]
    )
    mine = player(Fixed(2, shuffle=False), store)
    kept, places = [], set()
    for step, batch in enumerate(mine.iterate(0, 0)):
        places.add(batch["x"].data_ptr())
        if step % 2:
            kept.append(batch["x"][1, ::1000])
        del batch
    assert len(places) < 6 + 1
    assert [row.unique().tolist() for row in kept] == [[3.0], [7.0], [11.0]]
    del kept
    mine.shutdown()
    assert mine._buffer_pool.total_bytes == 0


@pytest.mark.slow
def test_a_process_ends_while_an_epoch_is_played():
    code = """
        import numpy as np
        from seqdata.loading.options import EngineOptions
        from seqdata.loading.engine import EpochEngine
        from seqdata.policies.fixed import Fixed
        from seqdata.storage.memory import MemoryStore

        store = MemoryStore.from_sequences([np.zeros(50_000, np.float32) for _ in range(400)])
        items = EpochEngine(store, Fixed(2), EngineOptions()).iterate(0, 0)
        next(items)
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=patient(),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_the_next_block_is_planned_ahead_of_its_use():
    store = MemoryStore.from_sequences([[1]] * 300)
    mine = player(SmallBlocks(Fixed(1), max_block=64), store)
    items = mine.iterate(0, 0)
    next(items)
    made = mine.plan(0)._table._cache
    assert until(lambda: len(made) >= 2)
    assert len(list(items)) == 299
