"""What one process found right is right for those that read the same store with it."""

import multiprocessing
import pickle

import pytest

from seqdata.storage.shared_memory import SharedBits
from seqdata_testing.waiting import patient


def set_last(bits):
    bits.buffer[1] = 128


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_bits_are_seen_by_the_process_that_is_started_with_them(method):
    bits = SharedBits(16, "store")
    process = multiprocessing.get_context(method).Process(target=set_last, args=(bits,))
    process.start()
    process.join(patient())
    assert process.exitcode == 0
    assert bits.buffer[:2] == b"\0\x80"


def test_bits_that_travel_in_another_way_begin_again():
    bits = SharedBits(9, "store")
    bits.buffer[0] = 255
    copy = pickle.loads(pickle.dumps(bits))
    assert (copy.count, copy.fingerprint) == (9, "store")
    assert copy.buffer[:2] == b"\0\0"
    assert bits.buffer[0] == 255


@pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 1), (8, 1), (9, 2)])
def test_there_is_a_bit_for_each(count, size):
    assert len(SharedBits(count, "store").buffer) == size
